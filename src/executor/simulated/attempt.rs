//! How one attempt is played.

use std::time::Duration;

use serde_json::{Value, json};

use super::dice::Dice;
use crate::conversation::{Message, Part, Role};
use crate::executor::{Call, ExecuteError, WorkResult};
use crate::money::{Charge, Price, Tokens};

/// How many words of the prompt the conversation is about.
const TOPICS_LIMIT: usize = 8;

/// Where words for the conversation are looked for.
const PROMPT_LOOKED_AT_CHARS: usize = 4_096;

/// In how many steps a text arrives.
const STREAM_STEPS: usize = 4;

/// One attempt while it is played.
pub(super) struct Performance<'a> {
    call: &'a Call<'a>,
    dice: Dice,
    model: &'a str,
    price: &'a Price,
    turns: u32,
    turns_played: u32,
    /// How long each turn takes.
    pace: Duration,
    session: String,
    topics: Vec<String>,
    /// How many tokens the conversation has so far, all of which the model reads in each turn.
    context_tokens: u64,
    tokens: Tokens,
}

impl<'a> Performance<'a> {
    pub(super) fn new(
        call: &'a Call<'a>,
        mut dice: Dice,
        model: &'a str,
        price: &'a Price,
        turns: u32,
        duration: Duration,
    ) -> Performance<'a> {
        // Rolled in any case, so that what follows is the same whether a session is carried on or not.
        let fresh = format!("sim-{}", dice.digits());
        let session = call.resume_session().map_or(fresh, str::to_owned);
        let topics = topics_of(call.prompt());
        let (pace, tokens) = (duration / turns, Tokens::default());
        Performance {
            call,
            dice,
            model,
            price,
            turns,
            turns_played: 0,
            pace,
            session,
            topics,
            context_tokens: 0,
            tokens,
        }
    }

    /// Begins the conversation.
    pub(super) fn open(&mut self) {
        self.call.session(&self.session);
        let instructions = "You are a simulated agent. You have the tools `read_file`, `search` and `run_command`.";
        self.context_tokens = token_count(instructions) + token_count(self.call.prompt());
        self.call.message(Message::new(Role::System).part(Part::text(instructions)));
        self.call.message(Message::user(self.call.prompt()));
    }

    /// Plays all turns and gives the answer.
    pub(super) fn play_out(mut self) -> Result<WorkResult, ExecuteError> {
        while self.turns_played + 1 < self.turns {
            self.play_turn()?;
        }
        let answer = self.answer();
        self.stream(&answer, self.pace)?;
        let message = Message::assistant(&answer);
        self.spend(0, token_count(&answer), 0);
        let raw = self.provider_message(&message, "end_turn");
        self.call.message(message.raw(raw));
        self.call.usage(self.charge());
        let json = json!({ "answer": answer, "topics": self.topics, "turns": self.turns_played + 1 });
        Ok(WorkResult::text(answer).json(json).charge(self.charge()).session(self.session))
    }

    /// Plays some of the turns, and begins a text that will not be finished.
    pub(super) fn play_half(&mut self) -> Result<(), ExecuteError> {
        let until = self.dice.between(1, self.turns);
        while self.turns_played < until {
            self.play_turn()?;
        }
        let cut_off = self.sentence();
        self.call.partial(&cut_off);
        Ok(())
    }

    /// Why it failed, with what was used until then.
    pub(super) fn failure(&mut self) -> ExecuteError {
        let pause = Duration::from_millis(u64::from(self.dice.between(100, 2_000)));
        let error = match self.dice.between(1, 3) {
            1 => ExecuteError::retry("the provider is overloaded").kind("overloaded"),
            2 => ExecuteError::retry_after(pause, "too many requests").kind("rate_limited"),
            _ => ExecuteError::retry("the connection was reset before the answer ended").kind("connection"),
        };
        error.result(WorkResult::empty().charge(self.charge()))
    }

    /// Why it would fail again.
    pub(super) fn refusal(&mut self) -> ExecuteError {
        let error = if self.dice.happens(50) {
            self.call.message(Message::assistant("I am sorry, but I cannot help with that."));
            ExecuteError::give_up("the model refuses to answer").kind("refused")
        } else {
            ExecuteError::give_up("the provider finds the request invalid").kind("invalid_request")
        };
        error.result(WorkResult::empty().charge(self.charge()))
    }

    /// The model thinks, says something and calls tools, which answer.
    fn play_turn(&mut self) -> Result<(), ExecuteError> {
        let thought = if self.dice.happens(60) { self.sentence() } else { String::new() };
        let text = self.sentence();
        self.stream(&text, self.pace * 2 / 3)?;
        let mut message = Message::new(Role::Assistant);
        if !thought.is_empty() {
            message = message.part(Part::thinking(&thought));
        }
        message = message.part(Part::text(&text));
        let mut results = Vec::new();
        for _ in 0..self.dice.between(1, 3) {
            let (tool_use, result) = self.tool_call();
            message = message.part(tool_use);
            results.push(Message::new(Role::Tool).part(result));
        }
        if self.dice.happens(70) {
            let raw = self.provider_message(&message, "tool_use");
            message = message.raw(raw);
        }
        let said = token_count(&text) + 25 * u64::try_from(results.len()).unwrap_or_default();
        self.call.message(message);
        wait(self.call, self.pace / 3)?;
        let mut read = 0;
        for result in results {
            read += result_tokens(&result);
            self.call.message(result);
        }
        self.spend(token_count(&thought), said, read);
        self.call.usage(self.charge());
        self.turns_played += 1;
        if self.dice.happens(50) {
            self.call.checkpoint(json!({ "turn": self.turns_played }));
        }
        Ok(())
    }

    /// Lets a text arrive bit by bit.
    fn stream(&self, text: &str, duration: Duration) -> Result<(), ExecuteError> {
        let words: Vec<&str> = text.split_inclusive(' ').collect();
        for step in 1..=STREAM_STEPS {
            wait(self.call, duration / u32::try_from(STREAM_STEPS).unwrap_or(1))?;
            self.call.partial(&words[..words.len() * step / STREAM_STEPS].concat());
        }
        Ok(())
    }

    /// A call of a tool, and what it answers.
    fn tool_call(&mut self) -> (Part, Part) {
        let id = format!("toolu_{}", self.dice.digits());
        let topic = self.topic();
        let number = self.dice.between(2, 90);
        let (name, input, answer, error) = match self.dice.between(1, 3) {
            1 => (
                "read_file",
                json!({ "path": format!("notes/{topic}.md"), "limit": 200 }),
                format!("# {topic}\n\n{}\n{}\n", self.sentence(), self.sentence()),
                format!("notes/{topic}.md: no such file"),
            ),
            2 => (
                "search",
                json!({ "query": topic, "max_results": number }),
                format!("{number} results\n1. All about {topic}\n2. {topic}, revisited\n"),
                "the index is being rebuilt".to_owned(),
            ),
            _ => (
                "run_command",
                json!({ "command": ["grep", "-rn", &topic, "notes"], "timeout_ms": 30_000 }),
                format!("notes/index.md:{number}:see {topic}\n"),
                "exit status 1".to_owned(),
            ),
        };
        let result = if self.dice.happens(15) { Part::tool_error(&id, error) } else { Part::tool_result(&id, answer) };
        (Part::tool_use(&id, name, input), result)
    }

    /// The message in the form in which a provider might send it.
    fn provider_message(&mut self, message: &Message, stop_reason: &str) -> Vec<u8> {
        let sent: Value = json!({
            "id": format!("msg_{}", self.dice.digits()),
            "type": "message",
            "role": message.role,
            "model": self.model,
            "content": message.parts,
            "stop_reason": stop_reason,
        });
        sent.to_string().into_bytes()
    }

    fn sentence(&mut self) -> String {
        const BEGINNINGS: [&str; 6] = [
            "Let me look at",
            "It seems that everything depends on",
            "First I need to understand",
            "There is more to",
            "I should compare",
            "The question is about",
        ];
        const ENDINGS: [&str; 6] = [
            "before I answer.",
            "and what follows from it.",
            "as far as it is known.",
            "once more, to be sure.",
            "in the light of what was found so far.",
            "step by step.",
        ];
        let beginning = self.dice.pick(&BEGINNINGS);
        let ending = self.dice.pick(&ENDINGS);
        format!("{beginning} {} {ending}", self.topic())
    }

    fn answer(&mut self) -> String {
        let closing = (0..self.dice.between(1, 4)).map(|_| self.sentence()).collect::<Vec<_>>().join(" ");
        format!("This is a simulated answer about {}. {closing}", self.topics.join(", "))
    }

    fn topic(&mut self) -> String {
        self.dice.pick(&self.topics).clone()
    }

    /// Counts the tokens of a turn: what was there before is read from the cache, what is new is written into it.
    fn spend(&mut self, reasoning: u64, output: u64, read: u64) {
        let cached = self.tokens.cache_write;
        let turn = Tokens {
            input: 3,
            output,
            cache_read: cached,
            cache_write: self.context_tokens.saturating_sub(cached),
            reasoning,
        };
        self.tokens += turn;
        self.context_tokens += output + read;
    }

    fn charge(&self) -> Charge {
        Charge::priced(self.model, self.tokens, self.price.clone())
    }
}

/// Waits, unless the call is cancelled.
pub(super) fn wait(call: &Call<'_>, duration: Duration) -> Result<(), ExecuteError> {
    match call.cancel_token().wait_timeout(duration) {
        None => Ok(()),
        Some(_) => Err(cancelled()),
    }
}

/// What it means is for the pool to say.
pub(super) fn cancelled() -> ExecuteError {
    ExecuteError::retry("cancelled").kind("cancelled")
}

/// The words that a prompt seems to be about, at least one.
fn topics_of(prompt: &str) -> Vec<String> {
    let looked_at: String = prompt.chars().take(PROMPT_LOOKED_AT_CHARS).collect();
    let mut topics = Vec::new();
    for word in looked_at.split(|sign: char| !sign.is_alphanumeric()) {
        let is_telling = (4..=24).contains(&word.chars().count());
        if is_telling && topics.len() < TOPICS_LIMIT && !topics.iter().any(|topic| topic == word) {
            topics.push(word.to_owned());
        }
    }
    if topics.is_empty() {
        topics.push("nothing".to_owned());
    }
    topics
}

/// A guess, at four letters each.
fn token_count(text: &str) -> u64 {
    u64::try_from(text.len().div_ceil(4)).unwrap_or(u64::MAX)
}

fn result_tokens(result: &Message) -> u64 {
    let tokens = |part: &Part| match part {
        Part::ToolResult { content, .. } => content.iter().map(text_tokens).sum(),
        _ => 0,
    };
    result.parts.iter().map(tokens).sum()
}

fn text_tokens(part: &Part) -> u64 {
    match part {
        Part::Text { text } => token_count(text),
        _ => 0,
    }
}
