//! A PostgreSQL server of the tests' own: one for each test process, with a schema for each test.
//!
//! It is made of the machine's programs, listens on a Unix socket in a temporary folder and nowhere else, and ends with the process,
//! however that ends: a shell waits for the end of a pipe that only the process holds open, ends the server, and removes the folder.
//! `WORKCREW_TEST_POSTGRES` names another server to use instead. Where there is none the tests say so once and do nothing, unless
//! `WORKCREW_REQUIRE_POSTGRES` is set.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Once};

/// A server, by an address without a schema.
#[derive(Debug)]
pub(crate) struct Server {
    address: String,
    /// The folder of its socket, if it is one of our own.
    pub(crate) folder: Option<PathBuf>,
    /// Ends the server when its input ends, which it does with this process.
    _watch: Option<Child>,
}

static SERVER: LazyLock<Result<Server, String>> = LazyLock::new(Server::start);

/// The server that the tests of this process share; `None`, once it was said, if there is none.
pub(crate) fn server() -> Option<&'static Server> {
    match &*SERVER {
        Ok(server) => Some(server),
        Err(reason) if std::env::var_os("WORKCREW_REQUIRE_POSTGRES").is_some() => {
            panic!("no PostgreSQL, and WORKCREW_REQUIRE_POSTGRES is set: {reason}")
        }
        Err(reason) => {
            static SAID: Once = Once::new();
            SAID.call_once(|| println!("skipped: no PostgreSQL: {reason}"));
            None
        }
    }
}

impl Server {
    /// The address of a schema that nobody has used.
    pub(crate) fn fresh(&self) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        self.at(&format!("test_{}_{number}", std::process::id()))
    }

    /// The address of a schema by its name.
    pub(crate) fn at(&self, schema: &str) -> String {
        let separator = if self.address.contains('?') { '&' } else { '?' };
        format!("{}{separator}schema={schema}", self.address)
    }

    fn start() -> Result<Server, String> {
        if let Ok(address) = std::env::var("WORKCREW_TEST_POSTGRES") {
            return Ok(Server { address, folder: None, _watch: None });
        }
        Server::start_own(&["fsync=off", "synchronous_commit=off", "full_page_writes=off"])
    }

    /// A server with settings of its own, for tests that do to it what others would not bear.
    pub(crate) fn start_own(settings: &[&str]) -> Result<Server, String> {
        let programs = programs()?;
        let folder = tempfile::Builder::new().prefix("workcrew-pg-").tempdir_in("/tmp").map_err(words)?.keep();
        let user = user_for(&folder)?;
        let data = folder.join("data");
        let initdb = user
            .command(&programs.join("initdb"))
            .args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync", "-D"])
            .arg(&data)
            .output()
            .map_err(words)?;
        if !initdb.status.success() {
            let _ = fs::remove_dir_all(&folder);
            return Err(format!("initdb failed: {}", String::from_utf8_lossy(&initdb.stderr)));
        }
        let watch = watched(&user, &programs.join("postgres"), &folder, settings).map_err(words)?;
        let address = format!("postgres://postgres@{}/postgres", encoded(&folder));
        Ok(Server { address, folder: Some(folder), _watch: Some(watch) })
    }
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A path as the host of an address.
fn encoded(folder: &Path) -> String {
    folder.display().to_string().replace('/', "%2F")
}

/// Where `initdb` and `postgres` are: the newest there are.
fn programs() -> Result<PathBuf, String> {
    let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = installed.map(|version| version.path().join("bin")).collect();
    folders.sort_by_key(|folder| {
        let version = folder.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        version.and_then(|version| version.parse::<u32>().ok())
    });
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    folders.splice(0..0, std::env::split_paths(&on_path));
    let is_whole = |folder: &&PathBuf| ["initdb", "postgres"].iter().all(|program| folder.join(program).is_file());
    folders.iter().rev().find(is_whole).cloned().ok_or_else(|| "there are no initdb and postgres".to_owned())
}

/// As whom the server runs: PostgreSQL refuses to be root.
struct User {
    /// What to put before a command, if anything.
    prefix: Vec<String>,
}

impl User {
    fn command(&self, program: &Path) -> Command {
        match self.prefix.split_first() {
            None => Command::new(program),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        }
    }
}

/// The user to run as, to whom the folder is given.
fn user_for(folder: &Path) -> Result<User, String> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).map_err(words)?;
    if !rustix::process::geteuid().is_root() {
        return Ok(User { prefix: Vec::new() });
    }
    for name in ["postgres", "nobody"] {
        let id = |which| Command::new("id").args([which, name]).output().ok().filter(|output| output.status.success());
        let number = |which| id(which).map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        if let (Some(user), Some(group)) = (number("-u"), number("-g")) {
            let owner = format!("{user}:{group}");
            let given = Command::new("chown").arg(&owner).arg(folder).status().map_err(words)?;
            if given.success() {
                let prefix = ["setpriv", "--reuid", &user, "--regid", &group, "--clear-groups"];
                return Ok(User { prefix: prefix.map(str::to_owned).to_vec() });
            }
        }
    }
    Err("there is no user but root to run a server as".to_owned())
}

/// Starts the server under a shell that ends it when its own input ends, and waits until it takes connections.
///
/// The shell is in a session of its own, so that what is typed at a terminal ends the tests first.
fn watched(user: &User, postgres: &Path, folder: &Path, settings: &[&str]) -> std::io::Result<Child> {
    const SCRIPT: &str = r#"
        folder=$1; shift
        "$@" </dev/null >"$folder/log" 2>&1 &
        server=$!
        trap '' HUP INT TERM
        while ! [ -S "$folder/.s.PGSQL.5432" ] || ! grep -q 'ready to accept connections' "$folder/log"; do
            kill -0 $server 2>/dev/null || { cat "$folder/log"; rm -rf "$folder"; exit 1; }
            sleep 0.02
        done
        echo up
        exec 1>&-
        cat >/dev/null
        kill -QUIT $server 2>/dev/null
        wait $server
        rm -rf "$folder"
    "#;
    let mut server = user.command(postgres);
    server.arg("-D").arg(folder.join("data")).arg("-k").arg(folder).args(["-c", "listen_addresses="]);
    server.args(["-c", "max_connections=200", "-c", "log_checkpoints=off"]);
    settings.iter().for_each(|setting| {
        server.args(["-c", setting]);
    });
    let mut shell = Command::new("setsid");
    shell.args(["sh", "-c", SCRIPT, "sh"]).arg(folder).arg(server.get_program()).args(server.get_args());
    let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut said = String::new();
    shell.stdout.take().expect("it is piped").read_to_string(&mut said)?;
    match said.trim() {
        "up" => Ok(shell),
        said => Err(std::io::Error::other(format!("the server did not start: {said}"))),
    }
}
