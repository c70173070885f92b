//! A small disk of its own, with a file that fills it.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

pub(crate) struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    /// One of so many MiB; `None` where mounting is not permitted.
    pub(crate) fn new(mebibytes: usize) -> Option<SmallDisk> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={mebibytes}m");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder.path()).output().unwrap();
        if !mounted.status.success() {
            println!("skipped: {}", String::from_utf8_lossy(&mounted.stderr));
            return None;
        }
        Some(SmallDisk { folder })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn fill(&self) {
        let mut filler = fs::File::create(self.path("filler")).unwrap();
        while filler.write(&[0; 4_096]).is_ok_and(|written| written > 0) {}
    }

    pub(crate) fn free(&self) {
        fs::remove_file(self.path("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.folder.path()).status();
    }
}
