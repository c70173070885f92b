//! A provider that does as it is told: a server of its own on loopback, which plays bytes.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

/// Far longer than anything takes here: what takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is done on a connection once its request was read. After the last step it is closed.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Sends bytes.
    Send(Vec<u8>),
    /// Sends bytes one by one, each in a packet of its own.
    Trickle(Vec<u8>),
    /// Sends the same bytes so many times, or until nobody takes them.
    Flood(Vec<u8>, usize),
    /// Sends the same bytes again and again, each time after a while, for as long as anybody takes them.
    Drip(Vec<u8>, Duration),
    /// Breaks the connection off, with what is still under way.
    Reset,
    /// Does nothing until the other side hangs up, which is told.
    Linger,
}

/// What somebody asked.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The first line and the headers, in lower case.
    pub(crate) head: String,
    pub(crate) body: Value,
}

type Play = dyn Fn(usize, &Request) -> Vec<Step> + Send + Sync;

/// See the [module](self).
pub(crate) struct Provider {
    /// Where it is, without a path.
    pub(crate) url: String,
    requests: Receiver<Request>,
    hung_up: Receiver<()>,
    is_over: Arc<AtomicBool>,
}

impl Provider {
    /// Plays what the number of a connection, from 0, and its request say.
    pub(crate) fn new(play: impl Fn(usize, &Request) -> Vec<Step> + Send + Sync + 'static) -> Provider {
        Provider::of(None, play)
    }

    /// Does the same on every connection, each of which is secured so.
    pub(crate) fn secured(tls: ServerConfig, steps: Vec<Step>) -> Provider {
        Provider::of(Some(Arc::new(tls)), move |_, _| steps.clone())
    }

    fn of(
        tls: Option<Arc<ServerConfig>>,
        play: impl Fn(usize, &Request) -> Vec<Step> + Send + Sync + 'static,
    ) -> Provider {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let (asked, requests) = channel();
        let (hangs_up, hung_up) = channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, play): (_, Arc<Play>) = (Arc::clone(&is_over), Arc::new(play));
        thread::spawn(move || {
            let number = AtomicUsize::new(0);
            for connection in listener.incoming() {
                if over.load(Ordering::Acquire) {
                    break;
                }
                let (asked, hangs_up, play) = (asked.clone(), hangs_up.clone(), Arc::clone(&play));
                let number = number.fetch_add(1, Ordering::Relaxed);
                let connection = Connection::of(connection.unwrap(), tls.clone());
                thread::spawn(move || serve(connection, number, &play, &asked, &hangs_up));
            }
        });
        Provider { url, requests, hung_up, is_over }
    }

    /// Does the same on every connection.
    pub(crate) fn always(steps: Vec<Step>) -> Provider {
        Provider::new(move |_, _| steps.clone())
    }

    /// Does this on the first connection, that on the second, and the last for ever.
    pub(crate) fn each(steps: Vec<Vec<Step>>) -> Provider {
        Provider::new(move |number, _| steps[number.min(steps.len() - 1)].clone())
    }

    /// The next request that was not looked at.
    pub(crate) fn asked(&self) -> Request {
        self.requests.recv_timeout(PATIENCE).unwrap()
    }

    /// All requests so far that were not looked at.
    pub(crate) fn all_asked(&self) -> Vec<Request> {
        self.requests.try_iter().collect()
    }

    /// Waits until somebody hangs up on a connection that lingers.
    pub(crate) fn wait_until_hung_up(&self) {
        self.hung_up.recv_timeout(PATIENCE).unwrap();
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let _ = TcpStream::connect(self.url.split_once("://").unwrap().1);
    }
}

/// What somebody has connected by.
enum Connection {
    Plain(TcpStream),
    Secured(Box<StreamOwned<ServerConnection, TcpStream>>),
}

impl Connection {
    fn of(stream: TcpStream, tls: Option<Arc<ServerConfig>>) -> Connection {
        stream.set_nodelay(true).unwrap();
        match tls {
            None => Connection::Plain(stream),
            Some(tls) => Connection::Secured(Box::new(StreamOwned::new(ServerConnection::new(tls).unwrap(), stream))),
        }
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Connection::Plain(stream) => stream,
            Connection::Secured(stream) => &stream.sock,
        }
    }
}

impl Read for Connection {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Connection::Plain(stream) => stream.read(bytes),
            Connection::Secured(stream) => stream.read(bytes),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Connection::Plain(stream) => stream.write(bytes),
            Connection::Secured(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Connection::Plain(stream) => stream.flush(),
            Connection::Secured(stream) => stream.flush(),
        }
    }
}

fn serve(mut stream: Connection, number: usize, play: &Arc<Play>, asked: &Sender<Request>, hangs_up: &Sender<()>) {
    let Some(request) = read(&mut stream) else { return };
    let steps = play(number, &request);
    let _ = asked.send(request);
    for step in steps {
        let done = match step {
            Step::Send(bytes) => stream.write_all(&bytes),
            Step::Trickle(bytes) => bytes.chunks(1).try_for_each(|byte| stream.write_all(byte)),
            Step::Flood(bytes, times) => (0..times).try_for_each(|_| stream.write_all(&bytes)),
            Step::Drip(bytes, every) => loop {
                thread::park_timeout(every);
                if let Err(error) = stream.write_all(&bytes).and_then(|()| stream.flush()) {
                    break Err(error);
                }
            },
            Step::Reset => {
                rustix::net::sockopt::set_socket_linger(stream.socket(), Some(Duration::ZERO)).unwrap();
                return;
            }
            Step::Linger => {
                let _ = stream.read_to_end(&mut Vec::new());
                let _ = hangs_up.send(());
                return;
            }
        };
        if done.is_err() {
            let _ = hangs_up.send(());
            return;
        }
    }
    let _ = stream.flush();
    let _ = stream.socket().shutdown(std::net::Shutdown::Write);
    // Whoever closes with something unread breaks off what it has sent.
    let _ = stream.read_to_end(&mut Vec::new());
}

fn read(stream: &mut Connection) -> Option<Request> {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
            });
            let mut body = bytes[end + 4..].to_vec();
            let missing = length.unwrap_or(0) - body.len();
            let mut rest = vec![0; missing];
            stream.read_exact(&mut rest).ok()?;
            body.extend(rest);
            let lower = |line: &str| {
                line.split_once(": ")
                    .map_or(line.to_owned(), |(name, value)| format!("{}: {value}", name.to_lowercase()))
            };
            let head = head.lines().map(lower).collect::<Vec<_>>().join("\n");
            return Some(Request { head, body: serde_json::from_slice(&body).unwrap() });
        }
        let count = stream.read(&mut part).ok().filter(|&count| count > 0)?;
        bytes.extend_from_slice(&part[..count]);
    }
}

/// An answer with a length.
pub(crate) fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("HTTP/1.1 {status} Whatever\r\n{headers}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// A JSON answer with a length.
pub(crate) fn json_answer(status: u16, body: &Value) -> Vec<u8> {
    answer(status, &[("content-type", "application/json")], &body.to_string())
}

const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n";

/// A stream whose end is known: in chunks, one for each event.
pub(crate) fn stream(events: &[String]) -> Vec<u8> {
    let mut bytes = begun_stream(events);
    bytes.extend(b"0\r\n\r\n");
    bytes
}

/// The same with headers of its own.
pub(crate) fn stream_saying(headers: &[(&str, &str)], events: &[String]) -> Vec<u8> {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let stream = String::from_utf8(stream(events)).unwrap();
    stream.replacen("\r\n", &format!("\r\n{headers}"), 1).into_bytes()
}

/// The same without its end.
pub(crate) fn begun_stream(events: &[String]) -> Vec<u8> {
    let chunks: String = events.iter().map(|event| format!("{:x}\r\n{event}\r\n", event.len())).collect();
    format!("{STREAM}transfer-encoding: chunked\r\n\r\n{chunks}").into_bytes()
}

/// A stream that ends when the connection does.
pub(crate) fn open_stream(events: &[String]) -> Vec<u8> {
    format!("{STREAM}\r\n{}", events.concat()).into_bytes()
}
