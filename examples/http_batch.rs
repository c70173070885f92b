//! How do I put prompts through a model over HTTP? Against a server in this program, without a network, a key or a bill; or against a real one:
//!
//! ```text
//! cargo run --release --features http --example http_batch
//! cargo run --release --features http --example http_batch -- http://localhost:11434/v1 llama3.2
//! cargo run --release --features http --example http_batch -- https://api.openai.com/v1 gpt-4.1-mini
//! ```
//!
//! The key of a real provider is taken from `OPENAI_API_KEY`, if it is set. The model may call a tool, which is a closure; a provider
//! that is busy is asked again when it says so. For Anthropic's models there is `AnthropicApi`, with the same methods.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use chrono::Utc;
use serde_json::{Value, json};
use workcrew::executor::http::Tool;
use workcrew::{Archive, MemoryRepository, NewJob, NewUnit, OpenAiApi, Price, Repository, Stop, WorkPool};

const CITIES: [&str; 5] = ["Paris", "Rome", "Oslo", "Bern", "Vienna"];

fn main() -> Result<(), Box<dyn Error>> {
    env_logger::init();
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().map_or_else(start_server, Ok)?;
    let model = arguments.next().unwrap_or_else(|| "a-small-model".to_owned());

    let schema = json!({
        "type": "object",
        "properties": { "city": { "type": "string" } },
        "required": ["city"],
        "additionalProperties": false,
    });
    let weather = Tool::new("weather", "What the weather is like in a city now.", schema, |input, _call| {
        let city = input["city"].as_str().ok_or("which city?")?;
        Ok(if city.contains('o') { "rain" } else { "sun" }.to_owned())
    });
    let price = Price::new(Utc::now()).input("0.40".parse()?).output("1.60".parse()?).cache_read("0.10".parse()?);
    let mut api = OpenAiApi::new(model)
        .base_url(url)
        .system_prompt("Answer in one short sentence.")
        .max_tokens(200)
        .tool(weather)
        .price(price);
    if std::env::var_os("OPENAI_API_KEY").is_none() {
        api = api.without_key();
    }

    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("weather"))?;
    let pool = WorkPool::builder(job.id, api, repository.clone())
        .max_workers(2)
        .on_unit_complete(|unit, result| {
            println!("{:<7} {} ({})", unit.id, result.output.as_deref().unwrap_or_default(), unit.cost);
        })
        .on_unit_failed(|unit, failure| println!("{:<7} {failure}", unit.id))
        .start()?;
    for city in CITIES {
        pool.wait_for_available_slot();
        pool.submit_work_unit(NewUnit::new(city), format!("What is the weather like in {city}?"))?;
    }
    pool.wait_for_completion();
    pool.stop(Stop::Drain)?;

    println!("\nWhat was said about Oslo:");
    let unit = repository.unit(job.id, "Oslo")?;
    for attempt in repository.attempts(unit.key)? {
        let failure = attempt.failure.map_or(String::new(), |failure| format!(" {failure}"));
        println!("  attempt {}{failure}", attempt.key.number);
        for stored in repository.messages(attempt.key, 0, 100)?.items {
            let parts = stored.message()?.map_or(Vec::new(), |message| message.parts);
            println!("    {}: {}", stored.role, serde_json::to_string(&parts)?);
        }
    }
    println!("\nIn all: {}", repository.costs(Some(job.id))?.total());
    Ok(())
}

/// Starts a server that speaks as OpenAI does: it asks for the weather first, then tells it. Every seventh request it is too busy.
fn start_server() -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/v1", listener.local_addr()?);
    thread::spawn(move || {
        let requests = AtomicU32::new(0);
        for stream in listener.incoming().flatten() {
            let number = requests.fetch_add(1, Ordering::Relaxed) + 1;
            if let Err(error) = answer(stream, number) {
                eprintln!("the server: {error}");
            }
        }
    });
    Ok(url)
}

fn answer(mut stream: TcpStream, number: u32) -> std::io::Result<()> {
    let request = read(&stream)?;
    if number.is_multiple_of(7) {
        let body = json!({ "error": { "message": "one at a time, please", "type": "requests", "code": "rate_limit_exceeded" } });
        return write!(
            stream,
            "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-type: application/json\r\n\r\n{body}"
        );
    }
    let messages = request["messages"].as_array().cloned().unwrap_or_default();
    let said = |role: &str| messages.iter().rev().find(|message| message["role"] == role);
    let question = said("user").and_then(|message| message["content"].as_str()).unwrap_or_default();
    let city = question.rsplit(' ').next().unwrap_or_default().trim_end_matches('?');
    let (delta, reason) = match said("tool") {
        Some(tool) => {
            let weather = tool["content"].as_str().unwrap_or("weather");
            (json!({ "content": format!("There is {weather} in {city}.") }), "stop")
        }
        None => {
            let function = json!({ "name": "weather", "arguments": json!({ "city": city }).to_string() });
            (
                json!({ "tool_calls": [{ "index": 0, "id": "call-1", "type": "function", "function": function }] }),
                "tool_calls",
            )
        }
    };
    let usage =
        json!({ "prompt_tokens": question.len(), "completion_tokens": 10, "total_tokens": question.len() + 10 });
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")?;
    for choice in [json!({ "index": 0, "delta": delta }), json!({ "index": 0, "delta": {}, "finish_reason": reason })] {
        write!(stream, "data: {}\n\n", json!({ "id": "x", "model": "a-small-model", "choices": [choice] }))?;
    }
    write!(stream, "data: {}\n\ndata: [DONE]\n\n", json!({ "id": "x", "choices": [], "usage": usage }))
}

/// The body of a request.
fn read(stream: &TcpStream) -> std::io::Result<Value> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    for line in reader.by_ref().lines() {
        let line = line?.to_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}
