//! A database that was damaged, or made to do harm: what is wrong is found, and nothing else happens.

mod bits;
mod hostile;
mod life;
mod rows;
mod table;

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use workcrew::audit::verify::Verification;
use workcrew::repository::sqlite::{OpenError, SqliteArchive};
use workcrew::{RepositoryError, audit};

/// A look that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// What became of a look at a file.
#[derive(Debug)]
#[expect(dead_code, reason = "what went wrong is printed")]
enum Look {
    Refused(OpenError),
    Failed(RepositoryError),
    Read(Box<Verification>),
}

/// Opens a file as an auditor does, in a thread of its own, so that a panic or a hang is told.
fn look_at(path: &Path) -> Look {
    let (told, answer) = mpsc::channel();
    let path = path.to_owned();
    let looker = std::thread::spawn(move || {
        let look = match SqliteArchive::open(&path) {
            Err(refusal) => Look::Refused(refusal),
            Ok(archive) => match audit::verify(&archive) {
                Err(failure) => Look::Failed(failure),
                Ok(verification) => Look::Read(Box::new(verification)),
            },
        };
        let _ = told.send(look);
    });
    match answer.recv_timeout(PATIENCE) {
        Ok(look) => look,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the look hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("the look panicked: {:?}", looker.join()),
    }
}

/// Numbers that look random and are the same in every run with the same seed.
#[derive(Debug)]
struct Random(u64);

impl Random {
    /// From the environment, or the same as ever; printed, so that a failure can be repeated.
    fn seeded() -> Random {
        let seed = std::env::var("WORKCREW_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_260_101);
        println!("WORKCREW_SEED={seed}");
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}
