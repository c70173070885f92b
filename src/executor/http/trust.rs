//! Whose word is taken for who a server is.
//!
//! A server shows a certificate, and some authority vouches for it. Without a file of one's own those are believed that browsers believe; a gateway
//! inside of a company has an authority of the company's own.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use super::failure::Failure;
use crate::executor::trouble::Trouble;

/// How long a file of authorities may be: that of a whole system is a tenth of it.
const FILE_LIMIT_BYTES: u64 = 4 * 1024 * 1024;

/// What rustls says of a certificate that it does not take.
const NOT_TAKEN: &str = "invalid peer certificate: ";

/// What it says of an answer that is no TLS at all.
const NOT_SPOKEN: &str = "InvalidContentType";

/// Who is believed: the authorities of a file, or if there is none those that browsers believe.
pub(super) fn config(authorities: Option<&Path>) -> Result<TlsConfig, Failure> {
    let roots = match authorities {
        Some(file) => RootCerts::from(read(file)?),
        None => RootCerts::WebPki,
    };
    Ok(TlsConfig::builder().root_certs(roots).build())
}

/// The certificates of a file. What else is in it, such as a key, is nobody's word.
fn read(file: &Path) -> Result<Vec<Certificate<'static>>, Failure> {
    let wrong = |what: String| {
        Failure::new(Trouble::Certificate, format!("the certificate authority `{}` {what}", file.display()))
    };
    let mut pem = Vec::new();
    let opened = File::open(file).and_then(|opened| opened.take(FILE_LIMIT_BYTES + 1).read_to_end(&mut pem));
    opened.map_err(|error| wrong(format!("cannot be read: {error}")))?;
    if pem.len() as u64 > FILE_LIMIT_BYTES {
        return Err(wrong(format!("is longer than {FILE_LIMIT_BYTES} bytes")));
    }
    let mut certificates = Vec::new();
    for item in parse_pem(&pem) {
        match item {
            Ok(PemItem::Certificate(certificate)) => certificates.push(certificate),
            Ok(_) => {}
            Err(error) => return Err(wrong(format!("is damaged: {error}"))),
        }
    }
    if certificates.is_empty() {
        return Err(wrong("has no certificate in the form of PEM".to_owned()));
    }
    Ok(certificates)
}

/// Whether a page says that its server wants to be spoken to in TLS, as proxies and Go's servers say it.
pub(super) fn wants_tls(page: &str) -> bool {
    ["plain HTTP", "HTTP request to an HTTPS server"].iter().any(|words| page.contains(words))
}

/// What a connection means that failed over who the server is; `None` if it failed over something else.
pub(super) fn failure(error: &str, authorities: Option<&Path>) -> Option<Failure> {
    if let Some((_, why)) = error.split_once(NOT_TAKEN) {
        let advice = match authorities {
            Some(file) => format!("those who vouch for servers are in `{}`", file.display()),
            None => "a server of one's own needs the file of its certificate authority".to_owned(),
        };
        let what = format!("the certificate of the server is not trusted ({why}): {advice}");
        return Some(Failure::new(Trouble::Certificate, what));
    }
    let what = "the base URL begins with https, and the server does not speak TLS";
    error.contains(NOT_SPOKEN).then(|| Failure::new(Trouble::WrongUrl, what))
}
