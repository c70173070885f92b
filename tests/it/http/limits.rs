//! Limits of time, a cancel, and a key that is wrong.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
use serde_json::json;
use workcrew::clock::ManualClock;
use workcrew::executor::kinds;
use workcrew::repository::By;
use workcrew::{
    AnthropicApi, Archive, Call, Completion, Executor, MemoryRepository, NewJob, NewUnit, Repository, Stop, UnitStatus,
    WorkPool,
};

use super::provider::{Provider, Step, begun_stream, json_answer, open_stream, stream};
use super::{PATIENCE, anthropic, ask, messages, openai, shape, speech};

fn begun() -> Vec<u8> {
    begun_stream(&[vec![speech::began()], speech::text_block(0, &["It is "])].concat())
}

#[test]
fn a_provider_that_does_not_begin_to_answer_is_given_up() {
    let provider = Provider::always(vec![Step::Linger]);
    let tried = ask(anthropic(&provider).first_byte_limit(Duration::from_millis(50)));
    assert_eq!(tried.kind(), kinds::NEVER_SPOKE, "{}", tried.said());
    provider.wait_until_hung_up();
    assert_eq!(tried.charges, []);
}

#[test]
fn a_provider_that_sends_its_headers_one_by_one_does_not_begin_either() {
    let begun = Step::Send(b"HTTP/1.1 200 OK\r\nx: y\r\n".to_vec());
    let drip = |bytes: &[u8]| Step::Drip(bytes.to_vec(), Duration::from_millis(10));
    for then in [Step::Linger, drip(b"x: y\r\n"), drip(b"y")] {
        let provider = Provider::always(vec![begun.clone(), then]);
        let tried = ask(anthropic(&provider).first_byte_limit(Duration::from_millis(300)));
        assert_eq!(tried.kind(), kinds::NEVER_SPOKE, "{}", tried.said());
        provider.wait_until_hung_up();
    }
}

#[test]
fn who_sends_something_now_and_then_and_never_ends_has_as_long_as_the_attempt() {
    let comments = Step::Drip(b": still thinking\n\n".to_vec(), Duration::from_millis(10));
    let letters = Step::Drip(b"data: x".to_vec(), Duration::from_millis(10));
    let error = Step::Send(b"HTTP/1.1 500 Oh\r\n\r\n".to_vec());
    for steps in [
        vec![Step::Send(open_stream(&[])), comments],
        vec![Step::Send(open_stream(&[speech::began()])), letters.clone()],
        vec![error, letters],
    ] {
        let provider = Provider::always(steps);
        let clock = ManualClock::new();
        let repository = MemoryRepository::with_clock(clock.clone());
        let job = repository.create_job(&NewJob::named("drips")).unwrap().id;
        let api = anthropic(&provider).silence_limit(PATIENCE);
        let pool = WorkPool::builder(job, api, repository.clone()).clock(clock.clone()).start().unwrap();
        let unit = pool.enqueue(NewUnit::new("a").max_retries(0), "Where?").unwrap();
        provider.asked();
        clock.advance(Duration::from_secs(601));
        let failure = unit.wait().unwrap().failure.unwrap();
        assert_eq!(failure.kind.as_str(), kinds::TIMED_OUT, "{failure}");
        provider.wait_until_hung_up();
    }
}

#[test]
fn a_provider_that_falls_silent_is_given_up_and_what_it_said_is_kept() {
    let provider = Provider::always(vec![Step::Send(begun()), Step::Linger]);
    let tried = ask(anthropic(&provider).silence_limit(Duration::from_secs(2)));
    assert_eq!((tried.kind(), tried.output()), (kinds::SILENT, "It is "), "{}", tried.said());
    assert!(tried.charges[0].is_estimated);
    provider.wait_until_hung_up();
}

#[test]
fn a_host_that_cannot_be_reached_is_given_up() {
    // Nothing is there, and nobody says so.
    let provider = Provider::always(Vec::new());
    let api = anthropic(&provider).base_url("http://192.0.2.1:9").connect_limit(Duration::from_millis(50));
    assert_eq!(ask(api).kind(), kinds::CONNECTION);
}

/// Cancels while a provider is in the middle of this, and says what came of it.
fn cancelled_during(steps: Vec<Step>) -> (String, String) {
    let provider = Provider::always(steps);
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("cancel")).unwrap().id;
    let (api, (told, tells)) = (anthropic(&provider), channel());
    let execute = move |call: &Call<'_>| {
        let result = api.execute(call);
        told.send(result.as_ref().unwrap_err().to_string()).unwrap();
        result
    };
    // It has all the time it likes: if it did not hang up, this would wait for ever.
    let pool = WorkPool::builder(job, execute, repository.clone())
        .timeout(PATIENCE * 10)
        .kill_grace(PATIENCE)
        .start()
        .unwrap();
    let unit = pool.enqueue(NewUnit::new("a"), "Where?").unwrap();
    provider.asked();
    unit.cancel(By::new("a test", "why not")).unwrap();
    let failure = tells.recv_timeout(PATIENCE).unwrap();
    assert_eq!(unit.wait().unwrap().status, UnitStatus::Cancelled);
    provider.wait_until_hung_up();
    let key = repository.attempts(repository.unit(job, "a").unwrap().key).unwrap()[0].key;
    (failure, shape(&messages(&repository, key)))
}

#[test]
fn a_cancel_hangs_up_wherever_the_provider_is() {
    for steps in [
        vec![Step::Linger],
        vec![Step::Send(b"HTTP/1.1 200 OK\r\ncontent-".to_vec()), Step::Linger],
        vec![Step::Send(begun()), Step::Linger],
        vec![Step::Send(b"HTTP/1.1 500 Oh\r\ncontent-length: 10\r\n\r\nhalf".to_vec()), Step::Linger],
        vec![Step::Send(open_stream(&[])), Step::Flood(b": still thinking\n\n".to_vec(), usize::MAX)],
    ] {
        let what = format!("{steps:?}").chars().take(60).collect::<String>();
        let (failure, _) = cancelled_during(steps);
        assert!(failure.starts_with("cancelled: "), "{what}: {failure}");
    }
}

/// A server that takes no connection, and does not say so either: its line is full.
struct Crowded {
    listener: OwnedFd,
    port: u16,
    line: Vec<TcpStream>,
}

impl Crowded {
    fn new() -> Crowded {
        let listener = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&listener, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        listen(&listener, 0).unwrap();
        let port = SocketAddrV4::try_from(getsockname(&listener).unwrap()).unwrap().port();
        let mut crowded = Crowded { listener, port, line: Vec::new() };
        while let Ok(stream) = TcpStream::connect_timeout(&crowded.address(), Duration::from_millis(200)) {
            crowded.line.push(stream);
        }
        crowded
    }

    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// How many are about to connect, as the system has it.
    fn connecting(&self) -> usize {
        let to = format!("0100007F:{:04X} 02", self.port);
        std::fs::read_to_string("/proc/self/net/tcp").unwrap().lines().filter(|line| line.contains(&to)).count()
    }
}

#[test]
fn a_cancel_waits_for_no_connection() {
    let crowded = Crowded::new();
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("crowded")).unwrap().id;
    // It has all the time it likes: if it was waited for, this would wait for ever.
    let api = AnthropicApi::new("m").without_key().base_url(format!("http://{}", crowded.address()));
    let (told, tells) = channel();
    let execute = {
        let api = api.connect_limit(PATIENCE * 10);
        move |call: &Call<'_>| {
            let result = api.execute(call);
            told.send(result.as_ref().unwrap_err().to_string()).unwrap();
            result
        }
    };
    let pool = WorkPool::builder(job, execute, repository.clone()).kill_grace(PATIENCE).max_workers(4);
    let pool = pool.timeout(PATIENCE * 10).start().unwrap();
    let units: Vec<_> = (0..4).map(|id| pool.enqueue(NewUnit::new(id.to_string()), "Where?").unwrap()).collect();
    crate::commands::until("all are about to connect", || crowded.connecting() == 4);
    for unit in units {
        unit.cancel(By::new("a test", "why not")).unwrap();
        assert_eq!(unit.wait().unwrap().status, UnitStatus::Cancelled);
        assert_eq!(tells.recv_timeout(PATIENCE).unwrap(), "cancelled: it was to stop, and hung up");
    }
    assert_eq!(pool.stats().abandoned_threads, 0, "each worker is there as before");
    assert_eq!(crowded.connecting(), 4, "nobody has waited for that");
    drop(crowded.line);
    drop(crowded.listener);
}

#[test]
fn the_time_of_an_attempt_ends_it_and_what_was_said_is_kept() {
    let provider = Provider::always(vec![Step::Send(begun()), Step::Linger]);
    let clock = ManualClock::new();
    let repository = MemoryRepository::with_clock(clock.clone());
    let job = repository.create_job(&NewJob::named("slow")).unwrap().id;
    let pool = WorkPool::builder(job, anthropic(&provider), repository.clone()).clock(clock.clone()).start().unwrap();
    let unit = pool.enqueue(NewUnit::new("a").max_retries(0), "Where?").unwrap();
    let key = repository.unit(job, "a").unwrap().key;
    let partial =
        || repository.attempts(key).unwrap().first().and_then(|attempt| repository.partial_text(attempt.key).unwrap());
    crate::commands::until("the text is there", || partial().is_some());
    clock.advance(Duration::from_secs(601));
    let unit = unit.wait().unwrap();
    assert_eq!(unit.failure.unwrap().kind.as_str(), kinds::TIMED_OUT);
    provider.wait_until_hung_up();
    let said = messages(&repository, repository.attempts(key).unwrap()[0].key);
    assert!(shape(&said).ends_with(r#"assistant: "It is " *"#), "{}", shape(&said));
}

#[test]
fn a_wrong_key_holds_the_batch_and_fails_nothing() {
    let wrong = json!({ "error": { "message": "no", "type": "invalid_request_error", "code": "invalid_api_key" } });
    let good = vec![Step::Send(stream(&speech::openai_text(&["Paris."])))];
    let provider = Provider::new(move |_, request| {
        let is_right = request.head.contains("authorization: Bearer right");
        if is_right { good.clone() } else { vec![Step::Send(json_answer(401, &wrong))] }
    });
    let (told, is_right) =
        (std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)), std::sync::atomic::Ordering::SeqCst);
    let seen = std::sync::Arc::clone(&told);
    let api = openai(&provider).key_from(move || Some(if seen.load(is_right) { "right" } else { "wrong" }.to_owned()));
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("key")).unwrap().id;
    let pool = WorkPool::builder(job, api, repository.clone()).max_workers(2).start().unwrap();
    for number in 0..10 {
        pool.enqueue(NewUnit::new(number.to_string()), "Where?").unwrap();
    }
    let Completion::Blocked(reason) = pool.wait_for_completion() else { panic!("it was not held") };
    assert!(reason.to_string().contains("authentication: the provider says 401 invalid_api_key: no"), "{reason}");
    told.store(true, is_right);
    pool.resume();
    assert!(!matches!(pool.wait_for_completion(), Completion::Blocked(_)));
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(repository.counts(job).unwrap().of(UnitStatus::Completed), 10);
}
