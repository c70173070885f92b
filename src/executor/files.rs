//! Files that an attempt made: listed with size and hash, and never one outside of the workspace.
//!
//! Their names come from a unit or from a model, so nothing about them is trusted: what is absolute and elsewhere, climbs out, goes
//! through a link or is no plain file is left out. Names are followed one by one, each from the folder before, so that a link which
//! is put in the way meanwhile is not followed either.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fstat, open, openat};

use crate::attempt::OutputFile;
use crate::chain::Hash;

/// How many files are listed.
const FILE_LIMIT: usize = 10_000;

/// Longer files are not read.
const FILE_LIMIT_BYTES: u64 = 1 << 30;

/// How much is read between two questions whether there is still time.
const CHUNK_BYTES: usize = 256 * 1024;

/// Lists those of the files that are there and may be listed, by their paths in the workspace. When there is no more time the rest is
/// left out.
pub(super) fn list<'a>(
    workspace: &Path,
    names: impl IntoIterator<Item = &'a str>,
    mut has_time: impl FnMut() -> bool,
) -> Vec<OutputFile> {
    let real = workspace.canonicalize().unwrap_or_else(|_| workspace.to_owned());
    let mut listed = BTreeMap::new();
    for name in names.into_iter().take(FILE_LIMIT) {
        let Some(inside) = inside(workspace, &real, name) else {
            log::warn!("a file outside of the workspace is not listed");
            continue;
        };
        let path = inside.to_string_lossy().into_owned();
        if listed.contains_key(&path) {
            continue;
        }
        match look_at(workspace, &inside, &mut has_time) {
            Ok(Some((size_bytes, hash))) => {
                listed.insert(path.clone(), OutputFile { path, size_bytes, hash });
            }
            Ok(None) => log::warn!("what is no plain file, or longer than {FILE_LIMIT_BYTES} bytes, is not listed"),
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                log::warn!("there is no time to look at all output files");
                break;
            }
            Err(error) => log::debug!("an output file could not be read: {error}"),
        }
    }
    listed.into_values().collect()
}

/// The path from the workspace on; `None` if it is not inside, by its name.
fn inside(workspace: &Path, real: &Path, name: &str) -> Option<PathBuf> {
    let path = Path::new(name);
    let path =
        if path.is_absolute() { path.strip_prefix(workspace).or_else(|_| path.strip_prefix(real)).ok()? } else { path };
    let mut inside = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => inside.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    (!inside.as_os_str().is_empty()).then_some(inside)
}

/// The size and hash of a plain file.
fn look_at(
    workspace: &Path,
    inside: &Path,
    has_time: &mut impl FnMut() -> bool,
) -> std::io::Result<Option<(u64, Hash)>> {
    let folder_flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut folder: OwnedFd = open(workspace, folder_flags, Mode::empty())?;
    if let Some(parents) = inside.parent() {
        for part in parents {
            folder = openat(&folder, part, folder_flags | OFlags::NOFOLLOW, Mode::empty())?;
        }
    }
    let name = inside.file_name().unwrap_or_default();
    // To open a pipe must not wait for somebody to write to it.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(&folder, name, flags, Mode::empty())?;
    let found = fstat(&file)?;
    let is_plain = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    if !is_plain || u64::try_from(found.st_size).unwrap_or(u64::MAX) > FILE_LIMIT_BYTES {
        return Ok(None);
    }
    // Somebody may still write to it: what is read is what is told.
    let (mut file, mut hasher) = (File::from(file).take(FILE_LIMIT_BYTES), blake3::Hasher::new());
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        if !has_time() {
            return Err(ErrorKind::TimedOut.into());
        }
        match file.read(&mut chunk) {
            Ok(0) => return Ok(Some((hasher.count(), Hash::from_bytes(*hasher.finalize().as_bytes())))),
            Ok(count) => drop(hasher.update(&chunk[..count])),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_inside_the_workspace_are_listed_and_nothing_else_is() {
        let outside = tempfile::tempdir().unwrap();
        let workspace = outside.path().join("work");
        std::fs::create_dir_all(workspace.join("deep/er")).unwrap();
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        std::fs::write(workspace.join("a.txt"), "abc").unwrap();
        std::fs::write(workspace.join("deep/er/b"), "").unwrap();
        symlink("../secret", workspace.join("link")).unwrap();
        symlink("a.txt", workspace.join("inner link")).unwrap();
        symlink(outside.path(), workspace.join("folder link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, workspace.join("pipe"), Mode::RUSR | Mode::WUSR).unwrap();
        let absolute = workspace.join("a.txt");
        let names = [
            "a.txt",
            "./a.txt",
            absolute.to_str().unwrap(),
            "deep/er/b",
            "deep/./er//b",
            "missing",
            "",
            ".",
            "..",
            "../secret",
            "deep/../../secret",
            "deep/../a.txt",
            "/etc/passwd",
            "/dev/zero",
            "link",
            "inner link",
            "folder link/secret",
            "pipe",
            "deep",
            "a.txt/x",
            "nul\0",
        ];
        let expected = [("a.txt", "abc"), ("deep/er/b", "")];
        let expected = expected.map(|(path, text)| OutputFile {
            path: path.to_owned(),
            size_bytes: text.len() as u64,
            hash: Hash::of(text.as_bytes()),
        });
        assert_eq!(list(&workspace, names, || true), expected);
        assert_eq!(list(&workspace.join("nowhere"), names, || true), []);
    }

    #[test]
    fn what_there_is_no_time_for_is_left_out() {
        let workspace = tempfile::tempdir().unwrap();
        std::fs::write(workspace.path().join("a"), "abc").unwrap();
        // Nothing of it is on the disk.
        File::create(workspace.path().join("b")).unwrap().set_len(FILE_LIMIT_BYTES).unwrap();
        let mut asked = 0;
        let has_time = || {
            asked += 1;
            asked <= 10
        };
        let listed = list(workspace.path(), ["a", "b", "c"], has_time);
        assert_eq!(listed.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["a"]);
        assert_eq!(asked, 11);
    }
}
