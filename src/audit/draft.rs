//! A file that appears when it is whole, and that is for its owner: what is in a database is, and so is what is made of it.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What a file may be read and written by that was not there: its owner.
const MODE: u32 = 0o600;

/// A file on its way to its name.
///
/// It is written beside its place and gets the name, and the rights of what had that, with [`finish`](Draft::finish); if it is dropped before, nothing
/// has changed. What is no file, such as a pipe, is written to as it is.
///
/// ```
/// use std::io::Write;
/// use workcrew::audit::draft::Draft;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("page.html");
/// let mut draft = Draft::at(&path)?;
/// draft.write_all(b"<html>")?;
/// assert!(!path.exists());
/// draft.finish()?;
/// assert_eq!(std::fs::read(path)?, b"<html>");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Draft {
    file: BufWriter<File>,
    /// Where it is, and where it belongs; `None` if it is there already.
    way: Option<(PathBuf, PathBuf)>,
}

impl Draft {
    /// Begins a file that will have this name.
    ///
    /// # Errors
    ///
    /// Nothing can be written there.
    pub fn at(path: impl AsRef<Path>) -> io::Result<Draft> {
        let path = path.as_ref();
        // A link stays one: what it leads to is replaced.
        let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mode = match fs::metadata(&place) {
            Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(there) if !there.is_file() => {
                let file = BufWriter::new(File::options().write(true).open(&place)?);
                return Ok(Draft { file, way: None });
            }
            Ok(there) => {
                // Who may not write it may not replace it either.
                File::options().write(true).open(&place)?;
                there.permissions().mode()
            }
            Err(_) => MODE,
        };
        let mut begun = place.as_os_str().to_owned();
        begun.push(".part");
        let begun = PathBuf::from(begun);
        // What somebody left half done may have other rights.
        match fs::remove_file(&begun) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = File::options().write(true).create_new(true).mode(MODE).open(&begun)?;
        let draft = Draft { file: BufWriter::new(file), way: Some((begun, place)) };
        draft.file.get_ref().set_permissions(Permissions::from_mode(mode))?;
        Ok(draft)
    }

    /// Gives it its name. It is not waited for until it is on the disk: it can be made again.
    ///
    /// # Errors
    ///
    /// It cannot be written, or not be given its name.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        if let Some((begun, place)) = &self.way {
            fs::rename(begun, place)?;
            self.way = None;
        }
        Ok(())
    }
}

impl Write for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Half a file must not pass for a whole one.
        if let Some((begun, _)) = &self.way {
            let _ = fs::remove_file(begun);
        }
    }
}
