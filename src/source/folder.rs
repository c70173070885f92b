//! A folder of texts.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::{LENGTH_LIMIT_BYTES, Place, Read};
use crate::unit::NewUnit;

pub(super) struct Folder {
    root: PathBuf,
    /// What is left to be looked at, the next one last.
    ahead: Vec<PathBuf>,
    /// Whether texts are payloads and not prompts.
    pub(super) is_for_template: bool,
    pub(super) left_out: Box<dyn Fn(&Path) -> bool + Send>,
}

impl Folder {
    pub(super) fn open(root: &Path) -> io::Result<Folder> {
        Ok(Folder {
            root: root.to_owned(),
            ahead: entries(root)?,
            is_for_template: false,
            left_out: Box::new(|_| false),
        })
    }

    pub(super) fn next(&mut self) -> Option<Read> {
        loop {
            let path = self.ahead.pop()?;
            if (self.left_out)(&path) {
                continue;
            }
            // A link to a folder may lead round in a circle; one to a file is as good as the file.
            let is_folder = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
            if !is_folder {
                let unit = self.unit(&path);
                return Some((Place::File(path), unit));
            }
            match entries(&path) {
                Ok(entries) => self.ahead.extend(entries),
                Err(error) => return Some((Place::File(path), Err(format!("it cannot be read: {error}")))),
            }
        }
    }

    fn unit(&self, path: &Path) -> Result<NewUnit, String> {
        let name = path.strip_prefix(&self.root).unwrap_or(path);
        let name = name.to_str().ok_or("its name is not UTF-8")?;
        let text = text(path)?;
        Ok(if self.is_for_template {
            NewUnit::new(name).payload(json!({ "path": name, "text": text }))
        } else {
            NewUnit::new(name).prompt(text)
        })
    }
}

/// What is in a folder and not hidden, the first name last.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    let is_shown = |entry: &fs::DirEntry| !entry.file_name().as_encoded_bytes().starts_with(b".");
    let mut paths: Vec<PathBuf> = entries.iter().filter(|entry| is_shown(entry)).map(fs::DirEntry::path).collect();
    paths.sort_unstable_by(|one, other| other.cmp(one));
    Ok(paths)
}

fn text(path: &Path) -> Result<String, String> {
    let cannot = |error: io::Error| format!("it cannot be read: {error}");
    // Neither a pipe that nobody writes to nor a device that never ends is opened.
    if !fs::metadata(path).map_err(cannot)?.is_file() {
        return Err("it is no file".to_owned());
    }
    let mut bytes = Vec::new();
    let limit = LENGTH_LIMIT_BYTES as u64 + 1;
    File::open(path).map_err(cannot)?.take(limit).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() > LENGTH_LIMIT_BYTES {
        return Err(format!("it is longer than {LENGTH_LIMIT_BYTES} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())
}
