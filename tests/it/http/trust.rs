//! Servers of one's own, for which an authority of one's own vouches.

use std::io::{Read, Write};
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;
use workcrew::executor::kinds;
use workcrew::{
    AnthropicApi, Archive, Completion, Executor, MemoryRepository, NewJob, NewUnit, Repository, Then, WorkPool,
};

use super::provider::{Provider, Step, answer, stream};
use super::{anthropic, ask, openai, speech};

/// Whoever vouches for servers, and the file that says so.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

impl Authority {
    fn named(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Authority { issuer, folder: crate::support::folder() };
        authority.write("authority.pem", authority.issuer.pem());
        authority
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("authority.pem")
    }

    /// How a server of this name speaks for which it vouches, with whatever else is said of it.
    fn vouched(&self, name: &str, also: impl FnOnce(&mut CertificateParams)) -> ServerConfig {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        also(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        secured(certificate.der().clone(), &key)
    }

    fn provider(&self, steps: Vec<Step>) -> Provider {
        Provider::secured(self.vouched("127.0.0.1", |_| {}), steps)
    }
}

fn secured(certificate: CertificateDer<'static>, key: &KeyPair) -> ServerConfig {
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = rustls::crypto::ring::default_provider().into();
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    config.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap()
}

fn paris() -> Vec<Step> {
    vec![Step::Send(stream(&speech::anthropic_text(&["Paris."])))]
}

#[test]
fn a_server_is_believed_for_which_an_authority_of_ones_own_vouches() {
    let authority = Authority::named("ours");
    let provider = authority.provider(paris());
    let api = || anthropic(&provider).certificate_authority(authority.file());
    assert!(api().is_available().is_ok());
    assert_eq!(ask(api()).output(), "Paris.");
    let recorded = format!("certificate_authority={}", authority.file().display());
    assert!(api().provenance().arguments.contains(&recorded));
    // As in a file of a whole company, and with whatever else somebody has put there.
    let other = Authority::named("others");
    let all = format!("# ours\n{}{}{}", other.issuer.key().serialize_pem(), other.issuer.pem(), authority.issuer.pem());
    let all = authority.write("all.pem", all);
    assert_eq!(ask(anthropic(&provider).certificate_authority(all)).output(), "Paris.");
    // The server's own certificate is one that vouches for itself.
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = KeyPair::generate().unwrap();
    let itself = params.self_signed(&key).unwrap();
    let provider = Provider::secured(secured(itself.der().clone(), &key), paris());
    let pinned = authority.write("itself.pem", itself.pem());
    assert_eq!(ask(anthropic(&provider).certificate_authority(pinned)).output(), "Paris.");
}

#[test]
fn a_server_for_which_nobody_vouches_who_is_believed_is_told_nothing_and_holds_the_pool() {
    use rcgen::date_time_ymd;
    let (authority, other) = (Authority::named("ours"), Authority::named("others"));
    let file = format!("those who vouch for servers are in `{}`", authority.file().display());
    let ours = |provider: &Provider| anthropic(provider).certificate_authority(authority.file());
    let no_file = |provider: &Provider| anthropic(provider);
    type Api<'a> = &'a dyn Fn(&Provider) -> AnthropicApi;
    let old = |params: &mut CertificateParams| params.not_after = date_time_ymd(2020, 1, 1);
    let cases: [(ServerConfig, Api<'_>, &str, &str); 4] = [
        (
            authority.vouched("127.0.0.1", |_| {}),
            &no_file,
            "UnknownIssuer",
            "a server of one's own needs the file of its certificate authority",
        ),
        (other.vouched("127.0.0.1", |_| {}), &ours, "UnknownIssuer", &file),
        (authority.vouched("127.0.0.1", old), &ours, "certificate expired", &file),
        (authority.vouched("gateway.example", |_| {}), &ours, "not valid for name", &file),
    ];
    for (tls, api, why, advice) in cases {
        let provider = Provider::secured(tls, paris());
        let tried = ask(api(&provider));
        let then = Then::Hold { until: None };
        assert_eq!((tried.kind(), tried.then()), (kinds::CERTIFICATE, then), "{}", tried.said());
        let said = tried.said();
        assert!(said.contains(&provider.url) && said.contains(why) && said.contains(advice), "{said}");
        assert_eq!(provider.all_asked().len(), 0, "nothing was sent");
        assert_eq!(tried.charges, []);
    }
}

#[test]
fn a_batch_waits_until_somebody_has_given_the_authority() {
    let authority = Authority::named("ours");
    let provider = authority.provider(paris());
    let api = anthropic(&provider).certificate_authority(authority.folder.path().join("later.pem"));
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("trust")).unwrap().id;
    let pool = WorkPool::builder(job, api, repository.clone()).max_workers(2).start().unwrap();
    for number in 0..5 {
        pool.enqueue(NewUnit::new(number.to_string()).max_retries(0), "Where?").unwrap();
    }
    let Completion::Blocked(reason) = pool.wait_for_completion() else { panic!("it was not held") };
    assert!(reason.contains("certificate: ") && reason.contains("later.pem` cannot be read"), "{reason}");
    authority.write("later.pem", authority.issuer.pem());
    pool.resume();
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    assert_eq!(repository.counts(job).unwrap().completed, 5);
}

#[test]
fn a_file_of_authorities_that_is_none_is_named() {
    let authority = Authority::named("ours");
    let provider = authority.provider(paris());
    let pem = authority.issuer.pem();
    for (file, what) in [
        (authority.folder.path().join("nowhere.pem"), "cannot be read: No such file"),
        (authority.folder.path().to_owned(), "cannot be read: Is a directory"),
        (authority.write("empty.pem", ""), "has no certificate in the form of PEM"),
        (authority.write("der.pem", authority.issuer.der()), "has no certificate in the form of PEM"),
        (authority.write("key.pem", authority.issuer.key().serialize_pem()), "has no certificate in the form of PEM"),
        (authority.write("cut.pem", &pem[..pem.len() / 2]), "is damaged: "),
        (authority.write("garbled.pem", pem.replace("MII", "!!!")), "is damaged: "),
        (authority.write("long.pem", vec![b'\n'; 5 << 20]), "is longer than 4194304 bytes"),
        (PathBuf::from("/dev/zero"), "is longer than 4194304 bytes"),
    ] {
        let named = format!("the certificate authority `{}` {what}", file.display());
        let api = || anthropic(&provider).certificate_authority(&file);
        let missing = api().is_available().unwrap_err();
        assert!(missing.missing.starts_with(&named), "{missing}");
        let tried = ask(api());
        assert_eq!((tried.kind(), tried.then()), (kinds::CERTIFICATE, Then::Hold { until: None }));
        assert!(tried.said().contains(&named), "{}", tried.said());
    }
    assert_eq!(provider.all_asked().len(), 0);
}

#[test]
fn http_where_https_is_spoken_and_the_other_way_round_is_a_wrong_address() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
    });
    let provider = Provider::always(Vec::new());
    let tried = ask(anthropic(&provider).base_url(url));
    server.join().unwrap();
    assert_eq!((tried.kind(), tried.then()), (kinds::WRONG_URL, Then::Hold { until: None }), "{}", tried.said());
    assert!(tried.said().contains("the server does not speak TLS"), "{}", tried.said());
    for page in [
        "<html><head><title>400 The plain HTTP request was sent to HTTPS port</title></head></html>",
        "Client sent an HTTP request to an HTTPS server.\n",
        "<p>Your browser sent a request. Reason: You're speaking plain HTTP to an SSL-enabled server port.</p>",
    ] {
        let provider = Provider::always(vec![Step::Send(answer(400, &[], page))]);
        let tried = ask(openai(&provider));
        assert_eq!((tried.kind(), tried.then()), (kinds::WRONG_URL, Then::Hold { until: None }), "{}", tried.said());
    }
}

#[cfg(feature = "cli")]
#[test]
fn the_command_takes_the_file_of_an_authority_and_keeps_its_name_with_the_job() {
    use crate::command::{Scene, Started};
    let authority = Authority::named("ours");
    let provider = authority.provider(paris());
    let scene = Scene::new();
    scene.write_units("units.jsonl", 2);
    let line = format!("run units.jsonl --executor anthropic --model m --base-url {} --key-env MY_KEY", provider.url);
    let file = authority.file().display().to_string();
    let run = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        Started::of(scene.command(&words).env("MY_KEY", "sk-test")).end()
    };
    let held = run(&line);
    assert!(held.err.contains("the certificate of the server is not trusted"), "{}", held.err);
    assert_eq!((scene.count("PENDING"), provider.all_asked().len()), (2, 0));
    let missing = run(&format!("{line} --certificate-authority nowhere.pem")).code(2);
    assert!(missing.err.contains("the certificate authority `nowhere.pem` cannot be read"), "{}", missing.err);
    run(&format!("{line} --certificate-authority {file}")).well();
    assert_eq!(scene.count("COMPLETED"), 2);
    scene.write_units("units.jsonl", 3);
    let again = run("run units.jsonl").well();
    assert!(again.err.contains(&format!("--certificate-authority={file}")), "{}", again.err);
    assert_eq!(scene.count("COMPLETED"), 3);
    let wrong = run("run units.jsonl --executor claude --certificate-authority a.pem").code(2);
    assert!(wrong.err.contains("--certificate-authority is for --executor anthropic or openai"), "{}", wrong.err);
}
