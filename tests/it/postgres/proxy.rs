//! A connection that can be cut at a moment of one's choice: between a client and the socket of the server.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tempfile::TempDir;

use crate::support;

/// What becomes of the next commit that a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// It reaches the server, whose answer gets lost.
    Answer = 1,
    /// It gets lost itself.
    Commit = 2,
}

/// The commit, as a message of PostgreSQL's protocol.
const COMMIT: &[u8] = b"Q\0\0\0\x0bCOMMIT\0";

pub(super) struct Proxy {
    folder: TempDir,
    next: Arc<AtomicU8>,
}

impl Proxy {
    /// Before the server whose socket is in a folder.
    pub(super) fn before(server: &Path) -> Proxy {
        let folder = support::folder();
        let name = ".s.PGSQL.5432";
        let listener = UnixListener::bind(folder.path().join(name)).unwrap();
        let (server, next): (PathBuf, _) = (server.join(name), Arc::new(AtomicU8::new(0)));
        let cut = Arc::clone(&next);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, UnixStream::connect(&server)) else { return };
                let (answers, to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || copy(answers, to));
                let cut = Arc::clone(&cut);
                std::thread::spawn(move || forward(client, server, &cut));
            }
        });
        Proxy { folder, next }
    }

    /// The same address, by way of the proxy.
    pub(super) fn address(&self, address: &str) -> String {
        let (_, behind) = address.split_once("/postgres?").unwrap();
        format!(
            "postgres://postgres@{}/postgres?{behind}",
            self.folder.path().display().to_string().replace('/', "%2F")
        )
    }

    /// Cuts the connection at the next commit.
    pub(super) fn cut(&self, cut: Cut) {
        self.next.store(cut as u8, Ordering::SeqCst);
    }

    /// Whether the cut is still to come.
    pub(super) fn is_armed(&self) -> bool {
        self.next.load(Ordering::SeqCst) != 0
    }
}

fn copy(mut from: UnixStream, mut to: UnixStream) {
    let mut bytes = [0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// What a client says, up to the commit at which it is cut off. It sends one message and waits, so each is read by itself.
fn forward(mut client: UnixStream, mut server: UnixStream, next: &AtomicU8) {
    let mut bytes = [0; 64 * 1024];
    while let Ok(count @ 1..) = client.read(&mut bytes) {
        let said = &bytes[..count];
        let cut = if said == COMMIT { next.swap(0, Ordering::SeqCst) } else { 0 };
        if cut != 0 {
            // Nothing more reaches the client, whatever the server answers.
            client.shutdown(Shutdown::Both).unwrap();
        }
        if cut == Cut::Commit as u8 {
            break;
        }
        if server.write_all(said).is_err() || cut != 0 {
            break;
        }
    }
    if next.load(Ordering::SeqCst) == 0 {
        // The server hears the commit to its end before it hears that nobody is there any more.
        let _ = server.shutdown(Shutdown::Write);
    }
}
