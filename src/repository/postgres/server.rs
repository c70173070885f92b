//! Where the database is, and how a session there is set up.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use postgres::Config;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::ConnectError;
use super::connection::{Connection, Read};

/// The schema that is used unless another one is named.
const DEFAULT_SCHEMA: &str = "workcrew";

/// The longest name of a schema that PostgreSQL does not cut.
const SCHEMA_LIMIT_BYTES: usize = 63;

/// How long a connection may take to come about, unless the address says otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long nobody may acknowledge what was sent before a connection is given up.
const TCP_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a session may say nothing in the midst of a transaction, in which it keeps all other writers waiting.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It makes changes, and must not keep others from theirs.
    Writing,
    /// It reads, which may take long.
    Reading,
    /// It waits to be told.
    Listening,
}

/// A database, and a schema in it.
#[derive(Clone)]
pub(super) struct Server {
    config: Config,
    tls: MakeRustlsConnect,
    pub(super) schema: String,
    pub(super) timeouts: Timeouts,
}

/// How long the server lets a session wait or work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    /// For a lock, at a time: whoever has patience asks again.
    pub(super) lock: Duration,
    /// For a statement that writes.
    pub(super) writing: Duration,
    /// For a statement that reads.
    pub(super) reading: Duration,
}

impl fmt::Debug for Server {
    /// Without the password, which `Config` leaves out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("config", &self.config).field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Server {
    /// Reads an address: what PostgreSQL's own tools take, and `schema` and `sslrootcert` besides.
    pub(super) fn at(address: &str, timeouts: Timeouts) -> Result<Server, ConnectError> {
        let Address { plain, schema, root_certificates } = Address::of(address)?;
        let invalid = |error: postgres::Error| ConnectError::invalid(super::connection::words_of(&error));
        let mut config: Config = plain.parse().map_err(invalid)?;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(TCP_TIMEOUT);
        }
        config.keepalives_idle(TCP_TIMEOUT / 2).keepalives_interval(TCP_TIMEOUT / 8).keepalives_retries(4);
        if config.get_application_name().is_none() {
            config.application_name("workcrew");
        }
        let tls = tls(root_certificates.as_deref().map(Path::new))?;
        Ok(Server { config, tls, schema, timeouts })
    }

    /// A new session, in the schema.
    pub(super) fn connect(&self, purpose: Purpose) -> Read<Connection> {
        let mut connection = Connection::new(self.config.connect(self.tls.clone())?)?;
        connection.batch(&self.settings(purpose))?;
        Ok(connection)
    }

    fn settings(&self, purpose: Purpose) -> String {
        let Timeouts { lock, writing, reading } = self.timeouts;
        let statement = match purpose {
            Purpose::Writing => writing,
            Purpose::Reading | Purpose::Listening => reading,
        };
        let tcp_ms = TCP_TIMEOUT.as_millis();
        let tcp_s = TCP_TIMEOUT.as_secs();
        // What is acknowledged is durable, whatever the role has by default.
        format!(
            "SET search_path = \"{schema}\";
             SET lock_timeout = {lock_ms};
             SET statement_timeout = {statement_ms};
             SET idle_in_transaction_session_timeout = {silence_ms};
             SET client_connection_check_interval = {silence_ms};
             SET tcp_user_timeout = {tcp_ms};
             SET tcp_keepalives_idle = {tcp_s};
             SET client_min_messages = warning;
             SET default_transaction_isolation = 'read committed';
             SET jit = off;
             SELECT set_config('synchronous_commit', 'on', false)
             WHERE current_setting('synchronous_commit') <> 'remote_apply'",
            schema = self.schema,
            lock_ms = lock.as_millis().max(1),
            statement_ms = statement.as_millis().max(1),
            silence_ms = SILENCE_LIMIT.as_millis(),
        )
    }
}

/// An address taken apart: what PostgreSQL's client understands, and what is ours.
struct Address {
    plain: String,
    schema: String,
    root_certificates: Option<String>,
}

impl Address {
    fn of(address: &str) -> Result<Address, ConnectError> {
        if !address.starts_with("postgres://") && !address.starts_with("postgresql://") {
            return Err(ConnectError::invalid("it does not begin with postgres://"));
        }
        let (place, query) = address.split_once('?').unwrap_or((address, ""));
        let (mut schema, mut root_certificates) = (DEFAULT_SCHEMA.to_owned(), None);
        let mut others = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("schema", value)) => value.clone_into(&mut schema),
                Some(("sslrootcert", value)) => root_certificates = Some(decoded(value)),
                // Whoever is asked by TLS is always checked.
                Some(("sslmode", "verify-ca" | "verify-full")) => others.push("sslmode=require"),
                _ => others.push(pair),
            }
        }
        check_schema(&schema)?;
        let plain = if others.is_empty() { place.to_owned() } else { format!("{place}?{}", others.join("&")) };
        Ok(Address { plain, schema, root_certificates })
    }
}

/// Names that need no quotes: in messages and by hand they are what they are here.
fn check_schema(schema: &str) -> Result<(), ConnectError> {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let begins_well = schema.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    if begins_well && schema.chars().all(is_inner) && schema.len() <= SCHEMA_LIMIT_BYTES && !schema.starts_with("pg_") {
        return Ok(());
    }
    Err(ConnectError::invalid(format!(
        "`{}` cannot be the name of a schema: small letters, digits and `_` can",
        crate::unit::shortened(schema)
    )))
}

/// A text in which `%2F` is `/`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let digits = behind.get(..2).filter(|_| first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            None => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// TLS that trusts the certificates in a file, or those that browsers trust.
fn tls(root_certificates: Option<&Path>) -> Result<MakeRustlsConnect, ConnectError> {
    let mut roots = RootCertStore::empty();
    match root_certificates {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(path) => {
            let unreadable = |error: &dyn fmt::Display| {
                ConnectError::invalid(format!("the certificates in `{}` cannot be read: {error}", path.display()))
            };
            let certificates = CertificateDer::pem_file_iter(path).map_err(|error| unreadable(&error))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| unreadable(&error))?;
                roots.add(certificate).map_err(|error| unreadable(&error))?;
            }
            if roots.is_empty() {
                return Err(unreadable(&"there are none"));
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring speaks the versions that are safe")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeouts() -> Timeouts {
        Timeouts { lock: Duration::ZERO, writing: Duration::ZERO, reading: Duration::ZERO }
    }

    fn refusal(address: &str) -> String {
        Server::at(address, timeouts()).unwrap_err().to_string()
    }

    #[test]
    fn an_address_names_a_schema_and_keeps_what_is_postgres_s_own() {
        let server = Server::at("postgres://ada:secret@db/work?schema=team_7&connect_timeout=3", timeouts()).unwrap();
        assert_eq!(server.schema, "team_7");
        assert_eq!(server.config.get_connect_timeout(), Some(&Duration::from_secs(3)));
        assert_eq!(server.config.get_dbname(), Some("work"));
        assert!(!format!("{server:?}").contains("secret"));
        assert_eq!(Server::at("postgresql://db/work", timeouts()).unwrap().schema, "workcrew");
    }

    #[test]
    fn an_address_that_cannot_be_is_refused_and_not_repeated() {
        for schema in ["", "Team", "a-b", "a\"; DROP SCHEMA public", "1a", "pg_x", &"a".repeat(64)] {
            let refusal = refusal(&format!("postgres://ada:secret@db/work?schema={schema}"));
            assert!(refusal.contains("schema") && !refusal.contains("secret"), "{refusal}");
        }
        assert!(refusal("mysql://db").contains("postgres://"));
        assert!(refusal("postgres://ada:secret@db/work?colour=red").contains("colour"));
        assert!(refusal("postgres://db/work?sslrootcert=%2Fno%2Fsuch").contains("`/no/such`"));
    }
}
