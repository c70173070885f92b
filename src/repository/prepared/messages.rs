//! Messages in the form in which they are stored.
//!
//! Callers serialise, hash and compress; the writer only links and inserts.

use std::io;

use crate::chain::Hash;
use crate::conversation::{Message, MessageContent, Role};
use crate::repository::{MESSAGE_LIMIT_BYTES, Result, rules};

/// From this size on compression is faster than writing what it saves; below it costs more than it gives.
const COMPRESSED_FROM_BYTES: usize = 32 * 1024;

/// The fastest level: the next ones save little more of a conversation.
const COMPRESSION_LEVEL: i32 = 1;

/// How body and raw are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::repository) enum Encoding {
    Plain,
    Zstd,
}

impl Encoding {
    pub(in crate::repository) fn name(self) -> &'static str {
        match self {
            Encoding::Plain => "plain",
            Encoding::Zstd => "zstd",
        }
    }

    pub(in crate::repository) fn from_name(name: &str) -> Option<Encoding> {
        [Encoding::Plain, Encoding::Zstd].into_iter().find(|encoding| encoding.name() == name)
    }

    fn encode(self, bytes: Vec<u8>) -> Vec<u8> {
        match self {
            Encoding::Plain => bytes,
            Encoding::Zstd => {
                zstd::bulk::compress(&bytes, COMPRESSION_LEVEL).expect("compressing into memory does not fail")
            }
        }
    }

    pub(in crate::repository) fn decode(self, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        match self {
            Encoding::Plain => Ok(bytes),
            Encoding::Zstd => zstd::bulk::decompress(&bytes, claimed_len(&bytes)?),
        }
    }
}

/// How long some compressed bytes claim to be, if that can be true. They cannot grow beyond it.
fn claimed_len(bytes: &[u8]) -> io::Result<usize> {
    let claimed = zstd::zstd_safe::get_frame_content_size(bytes).ok().flatten();
    let len = claimed.and_then(|len| usize::try_from(len).ok()).filter(|len| *len <= MESSAGE_LIMIT_BYTES);
    len.ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "no message of ours is so long, or says nothing of it")
    })
}

/// A message that is to be inserted.
#[derive(Debug)]
pub(in crate::repository) struct NewMessage {
    pub(in crate::repository) role: Role,
    pub(in crate::repository) encoding: Encoding,
    pub(in crate::repository) body: Vec<u8>,
    pub(in crate::repository) raw: Option<Vec<u8>>,
    pub(in crate::repository) content_hash: Hash,
}

impl NewMessage {
    pub(in crate::repository) fn of(message: &Message) -> Result<NewMessage> {
        let content = MessageContent::of(message)?;
        rules::check_content(&content)?;
        let content_hash = content.hash();
        let is_long = content.len_bytes() >= COMPRESSED_FROM_BYTES;
        let encoding = if is_long { Encoding::Zstd } else { Encoding::Plain };
        let raw = content.raw.map(|raw| encoding.encode(raw));
        Ok(NewMessage { role: message.role, encoding, body: encoding.encode(content.body), raw, content_hash })
    }

    /// What was said of a message before its attempt ended.
    pub(in crate::repository) fn partial(text: String) -> NewMessage {
        NewMessage::of(&Message::assistant(text).partial()).expect("a text is flat, and was measured")
    }

    pub(in crate::repository) fn len_bytes(&self) -> usize {
        self.body.len() + self.raw.as_ref().map_or(0, Vec::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_compressed_and_short_ones_are_not() {
        let short = NewMessage::of(&Message::user("hello")).unwrap();
        assert_eq!(short.encoding, Encoding::Plain);
        let text = "all work and no play ".repeat(COMPRESSED_FROM_BYTES / 10);
        let message = Message::user(text).raw(vec![0xff; 100]);
        let long = NewMessage::of(&message).unwrap();
        assert_eq!(long.encoding, Encoding::Zstd);
        assert!(long.body.len() < COMPRESSED_FROM_BYTES);
        assert_eq!(long.encoding.decode(long.body).unwrap(), MessageContent::of(&message).unwrap().body);
        assert_eq!(long.encoding.decode(long.raw.unwrap()).unwrap(), vec![0xff; 100]);
    }

    #[test]
    fn damaged_compression_is_an_error() {
        let text = "x".repeat(COMPRESSED_FROM_BYTES);
        let mut long = NewMessage::of(&Message::user(text)).unwrap();
        long.body.truncate(long.body.len() / 2);
        assert!(long.encoding.decode(long.body).is_err());
    }
}
