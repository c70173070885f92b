//! The socket that a worker connects to: in a directory that is nobody else's, for one worker, until it is there.

use std::error::Error;
use std::fmt;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How long the path of a socket may be: what the system has room for, less the byte that ends it.
#[cfg(target_os = "linux")]
const PATH_LIMIT_BYTES: usize = 107;
#[cfg(not(target_os = "linux"))]
const PATH_LIMIT_BYTES: usize = 103;

/// What sockets are called at the end.
const SUFFIX: &str = "sock";

/// A younger socket may be one that a worker is still expected at. To ask whether anybody listens is to connect, which would be taken for that worker.
const STALE_AFTER: Duration = Duration::from_secs(24 * 3_600);

/// Why there is no socket for a worker to connect to.
#[derive(Debug)]
#[non_exhaustive]
pub enum SocketError {
    /// The path is longer than the system allows for sockets.
    PathTooLong {
        /// The path.
        path: PathBuf,
    },
    /// The directory is not this user's alone.
    UnsafeDirectory {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Somebody listens there.
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// There is something else than a socket.
    NotASocket {
        /// Where.
        path: PathBuf,
    },
    /// The system refuses.
    System {
        /// What it was asked for.
        path: PathBuf,
        /// Why it refuses.
        source: io::Error,
    },
}

impl SocketError {
    /// Whether it stays like this until somebody has seen to it: the path, or who may go there.
    pub(in crate::executor) fn needs_a_person(&self) -> bool {
        match self {
            SocketError::PathTooLong { .. } | SocketError::UnsafeDirectory { .. } => true,
            // Every socket has a name of its own: the next one is free.
            SocketError::InUse { .. } | SocketError::NotASocket { .. } => false,
            SocketError::System { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::NotADirectory
                    | io::ErrorKind::PermissionDenied
                    | io::ErrorKind::ReadOnlyFilesystem
                    | io::ErrorKind::InvalidInput
                    | io::ErrorKind::InvalidFilename
            ),
        }
    }
}

impl fmt::Display for SocketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SocketError::PathTooLong { path } => {
                let bytes = path.as_os_str().len();
                write!(
                    f,
                    "the path of the socket `{}` has {bytes} bytes, and may have {PATH_LIMIT_BYTES}: choose a shorter \
                     `socket_directory`",
                    path.display()
                )
            }
            SocketError::UnsafeDirectory { path, problem } => {
                write!(f, "the directory for sockets `{}` {problem}", path.display())
            }
            SocketError::InUse { path } => write!(f, "somebody listens at the socket `{}`", path.display()),
            SocketError::NotASocket { path } => {
                write!(f, "there is something else than a socket at `{}`", path.display())
            }
            SocketError::System { path, .. } => write!(f, "no socket at `{}`", path.display()),
        }
    }
}

impl Error for SocketError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            SocketError::System { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// A directory for sockets that nobody else can look into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::executor) struct SocketDirectory(PathBuf);

impl SocketDirectory {
    /// Where sockets are unless somebody says otherwise: with the user's other sockets, else among temporary files.
    pub(in crate::executor) fn usual() -> PathBuf {
        match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_dir()) {
            Some(runtime) => runtime.join("workcrew"),
            None => std::env::temp_dir().join(format!("workcrew-{}", this_user())),
        }
    }

    /// Makes sure that it is there and that only this user can enter it, and removes what others have left that have died.
    pub(in crate::executor) fn open(path: &Path) -> Result<SocketDirectory, SocketError> {
        let system = |source| SocketError::System { path: path.to_owned(), source };
        match DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(system(error)),
        }
        // A link would lead to where somebody else decides.
        let found = fs::symlink_metadata(path).map_err(system)?;
        let problem = if !found.is_dir() {
            Some("is no directory")
        } else if found.uid() != this_user() {
            Some("is another user's")
        } else if found.mode() & 0o077 != 0 {
            Some("can be entered by others: take their rights away (`chmod 700`), or choose another `socket_directory`")
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(SocketError::UnsafeDirectory { path: path.to_owned(), problem });
        }
        // A worker may run elsewhere, and has to find it from there.
        let directory = SocketDirectory(std::path::absolute(path).map_err(system)?);
        directory.remove_stale();
        Ok(directory)
    }

    /// A socket of this name.
    pub(in crate::executor) fn door(&self, name: &str) -> Result<Door, SocketError> {
        Door::open(self.0.join(format!("{name}.{SUFFIX}")))
    }

    fn remove_stale(&self) {
        let Ok(entries) = fs::read_dir(&self.0) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            let is_old = entry
                .metadata()
                .and_then(|found| found.modified())
                .is_ok_and(|modified| SystemTime::now().duration_since(modified).is_ok_and(|age| age > STALE_AFTER));
            if is_old && path.extension().is_some_and(|extension| extension == SUFFIX) && is_deserted(&path) {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

/// Where one worker connects. Dropped, its socket is removed.
#[derive(Debug)]
pub(in crate::executor) struct Door {
    listener: Arc<UnixListener>,
    path: PathBuf,
}

impl Door {
    fn open(path: PathBuf) -> Result<Door, SocketError> {
        if path.as_os_str().len() > PATH_LIMIT_BYTES {
            return Err(SocketError::PathTooLong { path });
        }
        let bound = match UnixListener::bind(&path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                make_room(&path)?;
                UnixListener::bind(&path)
            }
            bound => bound,
        };
        let made = bound.and_then(|listener| {
            let door = Door { listener: Arc::new(listener), path: path.clone() };
            fs::set_permissions(&path, Permissions::from_mode(0o600))?;
            door.listener.set_nonblocking(true)?;
            Ok(door)
        });
        made.map_err(|source| SocketError::System { path, source })
    }

    /// Where it is.
    pub(in crate::executor) fn path(&self) -> &Path {
        &self.path
    }

    /// What becomes readable when somebody knocks.
    pub(in crate::executor) fn listener(&self) -> Arc<UnixListener> {
        Arc::clone(&self.listener)
    }

    /// Whoever knocks, if it is this user; `None` if nobody does.
    pub(in crate::executor) fn accept(&self) -> io::Result<Option<UnixStream>> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if is_of(&stream, this_user()) {
                stream.set_nonblocking(true)?;
                return Ok(Some(stream));
            }
            log::warn!("somebody else than this user has connected to `{}`, and was turned away", self.path.display());
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes a socket that nobody listens to any more.
fn make_room(path: &Path) -> Result<(), SocketError> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if !is_socket {
        return Err(SocketError::NotASocket { path: path.to_owned() });
    }
    if !is_deserted(path) {
        return Err(SocketError::InUse { path: path.to_owned() });
    }
    fs::remove_file(path).map_err(|source| SocketError::System { path: path.to_owned(), source })
}

/// Whether nobody listens at a socket. It is not knocked at, for whoever is let in is taken for the worker: a socket of another type is
/// refused where there is nobody, and does not fit where there is somebody.
fn is_deserted(path: &Path) -> bool {
    let looked = UnixDatagram::unbound().and_then(|socket| socket.connect(path));
    matches!(looked, Err(error) if error.kind() == io::ErrorKind::ConnectionRefused)
}

fn this_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether a user is at the other end. Where the system does not tell, the directory has kept others away.
fn is_of(stream: &UnixStream, user: u32) -> bool {
    #[cfg(target_os = "linux")]
    return rustix::net::sockopt::socket_peercred(stream).is_ok_and(|peer| peer.uid.as_raw() == user);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (stream, user);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    /// 002-F35.
    #[test]
    fn the_directory_and_the_socket_are_this_users_alone_and_the_socket_goes_with_the_door() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sockets");
        let directory = SocketDirectory::open(&path).unwrap();
        let door = directory.door("1").unwrap();
        let socket = door.path().to_owned();
        assert_eq!((mode(&path), mode(&socket)), (0o700, 0o600));
        assert!(door.accept().unwrap().is_none());
        let _worker = UnixStream::connect(&socket).unwrap();
        assert!(door.accept().unwrap().is_some());
        drop(door);
        assert!(!socket.exists());
        assert_eq!(SocketDirectory::open(&path).unwrap(), directory, "it may be there already");
    }

    #[test]
    fn whoever_is_somebody_else_is_not_let_in() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert!(is_of(&ours, this_user()));
        #[cfg(target_os = "linux")]
        assert!(!is_of(&ours, this_user() + 1));
    }

    /// By a process that is: only root can start one.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_of_another_user_that_gets_as_far_as_the_door_is_turned_away() {
        use std::io::{BufRead, BufReader};
        use std::os::unix::process::CommandExt;
        use std::process::{Command, Stdio};

        const KNOCKS: &str = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); \
                              print('there', flush=True); sys.exit(len(s.recv(1)))";
        let folder = tempfile::tempdir().unwrap();
        let directory = SocketDirectory::open(&folder.path().join("s")).unwrap();
        let door = directory.door("1").unwrap();
        // As if somebody had opened what is shut.
        for (path, mode) in [(folder.path(), 0o755), (&directory.0, 0o755), (door.path(), 0o777)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        let knock = |user: u32| {
            let mut command = Command::new("python3");
            command.arg("-c").arg(KNOCKS).arg(door.path()).current_dir("/").stdout(Stdio::piped()).uid(user);
            let mut child = command.spawn().ok()?;
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
            Some(child)
        };
        let nobody = this_user().checked_sub(1).unwrap_or(65_534);
        let Some(mut theirs) = knock(nobody) else {
            return eprintln!("nobody else can knock: this needs root and Python");
        };
        assert!(door.accept().unwrap().is_none());
        assert!(theirs.wait().unwrap().success(), "it was hung up on");
        let mut ours = knock(this_user()).unwrap();
        drop(door.accept().unwrap().expect("whoever is this user is let in"));
        ours.wait().unwrap();
    }

    #[test]
    fn a_directory_that_others_can_enter_or_that_is_none_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |path: &Path| SocketDirectory::open(path).unwrap_err().to_string();
        let (open, link, file) = (folder.path().join("open"), folder.path().join("link"), folder.path().join("file"));
        DirBuilder::new().mode(0o755).create(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o755)).unwrap();
        assert!(refused(&open).contains("can be entered by others"));
        symlink(folder.path(), &link).unwrap();
        assert!(refused(&link).ends_with("is no directory"));
        fs::write(&file, "").unwrap();
        assert!(refused(&file).ends_with("is no directory"));
        let missing = SocketDirectory::open(&folder.path().join("no/such")).unwrap_err();
        assert!(missing.source().is_some());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let directory = SocketDirectory::open(&folder.path().join("s")).unwrap();
        let path = folder.path().join("s/1.sock");
        // A listener that is closed leaves its file behind, as a process does that is killed.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let door = directory.door("1").unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        let refused = directory.door("1").unwrap_err();
        assert!(matches!(refused, SocketError::InUse { .. }), "{refused}");
        drop(door);
        fs::write(&path, "precious").unwrap();
        let refused = directory.door("1").unwrap_err();
        assert!(matches!(refused, SocketError::NotASocket { .. }), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn what_the_dead_have_left_is_removed_when_it_is_old() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let directory = SocketDirectory::open(&path).unwrap();
        let living = directory.door("living").unwrap();
        let left = ["old.sock", "young.sock", "old.txt"].map(|name| path.join(name));
        left.iter().take(2).for_each(|socket| drop(UnixListener::bind(socket).unwrap()));
        fs::write(&left[2], "").unwrap();
        let long_ago = SystemTime::now() - 2 * STALE_AFTER;
        for old in [&left[0], &left[2], living.path()] {
            let time =
                rustix::fs::Timespec::try_from(long_ago.duration_since(SystemTime::UNIX_EPOCH).unwrap()).unwrap();
            let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
            rustix::fs::utimensat(rustix::fs::CWD, old, &times, rustix::fs::AtFlags::empty()).unwrap();
        }
        SocketDirectory::open(&path).unwrap();
        assert_eq!(left.map(|path| path.exists()), [false, true, true]);
        assert!(living.path().exists());
        assert!(living.accept().unwrap().is_none(), "whoever looks does not knock");
    }

    /// A worker may run elsewhere than its parent.
    #[test]
    fn where_a_worker_connects_is_told_from_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let up = std::env::current_dir().unwrap().components().skip(1).map(|_| "..").collect::<PathBuf>();
        let path = up.join(folder.path().strip_prefix("/").unwrap()).join("s");
        let door = SocketDirectory::open(&path).unwrap().door("1").unwrap();
        assert!(folder.path().join("s/1.sock").exists());
        assert!(door.path().is_absolute(), "{}", door.path().display());
    }

    #[test]
    fn a_path_that_is_too_long_is_told_with_what_helps() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d".repeat(100));
        let error = SocketDirectory::open(&path).unwrap().door("1").unwrap_err();
        assert!(error.to_string().contains("choose a shorter `socket_directory`"), "{error}");
    }
}
