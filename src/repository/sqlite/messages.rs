//! What is stored of a message, read again.

use rusqlite::types::{FromSqlError, Type};

use crate::conversation::MessageContent;
use crate::repository::prepared::Encoding;

/// The content of a message as it was before it was stored; `None` if it was purged.
pub(super) fn read_content(
    row: &rusqlite::Row<'_>,
    encoding: usize,
    body: usize,
    raw: usize,
) -> rusqlite::Result<Option<MessageContent>> {
    let (encoding_name, stored_body) = (row.get_ref(encoding)?.as_str()?, row.get::<_, Option<Vec<u8>>>(body)?);
    let Some(encoding) = Encoding::from_name(encoding_name) else {
        return Err(FromSqlError::InvalidType.into());
    };
    let Some(stored_body) = stored_body else { return Ok(None) };
    let decode = |column, bytes| {
        encoding
            .decode(bytes)
            .map_err(|error| rusqlite::Error::FromSqlConversionFailure(column, Type::Blob, error.into()))
    };
    let stored_raw: Option<Vec<u8>> = row.get(raw)?;
    let raw = stored_raw.map(|bytes| decode(raw, bytes)).transpose()?;
    Ok(Some(MessageContent { body: decode(body, stored_body)?, raw }))
}
