//! What models cost, by their names: the table that comes with this crate, and the user's own on top.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::{error, fmt};

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};

use super::{Money, Price, Tier};

/// The list prices of some models, in the shape of LiteLLM's table.
const BUILT_IN: &str = include_str!("prices.json");

/// When those were looked up.
const BUILT_IN_AS_OF: &str = "2026-07-15T00:00:00Z";

/// LiteLLM's own table has less than two megabytes.
const LIMIT_BYTES: u64 = 64 * 1024 * 1024;

/// What stands among the models and is none: an example with words in the place of numbers, and rules for names.
const NOT_MODELS: [&str; 2] = ["sample_spec", "fallback_generalizations"];

/// Nano-dollars for a million tokens, where a table says dollars for one.
const NANOS_PER_MILLION: f64 = 1e15;

/// What models cost.
///
/// A model is found by its name; by its name without the provider that stands before it (`anthropic/claude-sonnet-4-5`); and without the date
/// that stands behind it, where the table has no price of that date (`claude-sonnet-4-5-20250929`). Nothing else is guessed: a model that is not
/// found has no price, which is not a price of nothing.
///
/// ```
/// use workcrew::{Price, PriceTable, Tokens};
///
/// let ours = Price::new("2026-03-01T00:00:00Z".parse()?).input("0.20".parse()?).output("0.60".parse()?);
/// let table = PriceTable::built_in().with("our-model", ours);
/// let used = Tokens { input: 1_000_000, ..Tokens::default() };
/// assert_eq!(table.price("our-model").and_then(|price| price.amount(&used)), Some("0.20".parse()?));
/// assert_eq!(table.price("somebody-elses"), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriceTable {
    prices: BTreeMap<String, Price>,
}

impl PriceTable {
    /// A table with nothing in it.
    pub fn new() -> PriceTable {
        PriceTable::default()
    }

    /// Some models of Anthropic and OpenAI at their list prices, each with the date when it was looked up. Whoever pays other prices, or
    /// uses other models, [lays](PriceTable::over) a table of their own over it.
    pub fn built_in() -> PriceTable {
        let as_of = BUILT_IN_AS_OF.parse().expect("a test reads it");
        PriceTable::read(BUILT_IN, as_of).expect("a test reads it")
    }

    /// A table in the shape of LiteLLM's `model_prices_and_context_window.json`: an object with an entry for each model, whose prices are
    /// dollars for one token. Fields that are not about tokens are passed over, and models that have none.
    ///
    /// | field | meaning |
    /// |---|---|
    /// | `input_cost_per_token`, `output_cost_per_token` | as they say |
    /// | `cache_read_input_token_cost`, `cache_creation_input_token_cost` | read from and written into the cache |
    /// | `output_cost_per_reasoning_token` | thinking; as output if it is not there |
    /// | any of the first four with `_above_200k_tokens`, or another number | in a request with a longer prompt |
    ///
    /// # Errors
    ///
    /// If it is no such object, or a price is no amount.
    pub fn read(json: &str, as_of: DateTime<Utc>) -> Result<PriceTable, PriceTableError> {
        let no_table = |problem: String| PriceTableError { path: None, problem };
        let entries: Map<String, Value> = serde_json::from_str(json).map_err(|error| no_table(error.to_string()))?;
        let mut prices = BTreeMap::new();
        for (model, entry) in entries {
            if NOT_MODELS.contains(&&*model) {
                continue;
            }
            let problem = |problem| no_table(format!("model `{}`: {problem}", crate::unit::shortened(&model)));
            let Value::Object(fields) = entry else { return Err(problem("is no object".to_owned())) };
            if let Some(price) = price_of(&fields, as_of).map_err(problem)? {
                prices.insert(model, price);
            }
        }
        Ok(PriceTable { prices })
    }

    /// The table in a file, as of when the file was last written.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is no such table.
    pub fn open(path: impl AsRef<Path>) -> Result<PriceTable, PriceTableError> {
        let path = path.as_ref();
        let failed = |problem: String| PriceTableError { path: Some(path.to_owned()), problem };
        let (json, as_of) = read_file(path).map_err(|error| failed(error.to_string()))?;
        PriceTable::read(&json, as_of).map_err(|error| failed(error.problem))
    }

    /// The same with a price of one's own.
    pub fn with(mut self, model: impl Into<String>, price: Price) -> PriceTable {
        self.prices.insert(model.into(), price);
        self
    }

    /// This table on top of another: what both have costs what this one says.
    pub fn over(self, below: PriceTable) -> PriceTable {
        let mut prices = below.prices;
        prices.extend(self.prices);
        PriceTable { prices }
    }

    /// What a model costs; `None` if nobody knows.
    pub fn price(&self, model: &str) -> Option<&Price> {
        names(model).find_map(|name| self.prices.get(&*name))
    }

    /// How many models it has prices of.
    pub fn len(&self) -> usize {
        self.prices.len()
    }

    /// Whether it has no price at all.
    pub fn is_empty(&self) -> bool {
        self.prices.is_empty()
    }
}

/// A file that is no table of prices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriceTableError {
    path: Option<PathBuf>,
    problem: String,
}

impl fmt::Display for PriceTableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "the table of prices `{}`: {}", path.display(), self.problem),
            None => write!(f, "the table of prices: {}", self.problem),
        }
    }
}

impl error::Error for PriceTableError {}

fn read_file(path: &Path) -> io::Result<(String, DateTime<Utc>)> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.len() > LIMIT_BYTES {
        return Err(io::Error::other(format!("it has more than {LIMIT_BYTES} bytes")));
    }
    let mut json = String::new();
    file.take(LIMIT_BYTES).read_to_string(&mut json)?;
    Ok((json, metadata.modified()?.into()))
}

/// What a model may be called in a table, the most exact name first.
fn names(model: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let bare = model.rsplit_once('/').map(|(_, bare)| bare);
    let exact = [Some(model), bare].into_iter().flatten();
    let undated = exact.clone().filter_map(without_date);
    exact.chain(undated).map(Cow::Borrowed)
}

/// A name without the day behind it: `-20250929`, or `-2025-04-14`.
fn without_date(model: &str) -> Option<&str> {
    let is_date = |text: &str, shape: &str| {
        text.len() == shape.len()
            && text.bytes().zip(shape.bytes()).all(|(byte, wanted)| match wanted {
                b'0' => byte.is_ascii_digit(),
                other => byte == other,
            })
    };
    ["-00000000", "-0000-00-00"].iter().find_map(|shape| {
        let (name, date) = model.split_at_checked(model.len().checked_sub(shape.len())?)?;
        (is_date(date, shape) && !name.is_empty()).then_some(name)
    })
}

/// The price in an entry; `None` if it is not sold by the token.
fn price_of(fields: &Map<String, Value>, as_of: DateTime<Utc>) -> Result<Option<Price>, String> {
    let field = |name: &str| fields.get(name).map(|value| for_a_million(name, value)).transpose();
    let output = field(OUTPUT)?;
    let price = Price {
        input: field(INPUT)?,
        output,
        cache_read: field(CACHE_READ)?,
        cache_write: field(CACHE_WRITE)?,
        reasoning: field("output_cost_per_reasoning_token")?.or(output),
        ..Price::new(as_of)
    };
    if [price.input, price.output].iter().all(Option::is_none) {
        return Ok(None);
    }
    let thresholds = fields.keys().filter_map(|name| threshold(name));
    let mut tiers: BTreeMap<u64, Tier> = thresholds.map(|tokens| (tokens, Tier::above(tokens))).collect();
    for (name, value) in fields {
        let Some((tier, base)) = threshold(name).and_then(|tokens| tiers.get_mut(&tokens)).zip(base(name)) else {
            continue;
        };
        let price = Some(for_a_million(name, value)?);
        match base {
            INPUT => tier.input = price,
            OUTPUT => tier.output = price,
            CACHE_READ => tier.cache_read = price,
            _ => tier.cache_write = price,
        }
    }
    Ok(Some(tiers.into_values().fold(price, Price::tier)))
}

const INPUT: &str = "input_cost_per_token";
const OUTPUT: &str = "output_cost_per_token";
const CACHE_READ: &str = "cache_read_input_token_cost";
const CACHE_WRITE: &str = "cache_creation_input_token_cost";

/// The field that one with a threshold is dearer than.
fn base(name: &str) -> Option<&'static str> {
    let base = name.split_once("_above_")?.0;
    [INPUT, OUTPUT, CACHE_READ, CACHE_WRITE].into_iter().find(|&known| known == base)
}

/// From how long a prompt on a field counts: `…_above_200k_tokens`.
fn threshold(name: &str) -> Option<u64> {
    base(name)?;
    let thousands: u64 = name.split_once("_above_")?.1.strip_suffix("k_tokens")?.parse().ok()?;
    thousands.checked_mul(1_000)
}

/// Dollars for a token as nano-dollars for a million of them.
fn for_a_million(name: &str, value: &Value) -> Result<Money, String> {
    let nanos = value.as_f64().map(|dollars| (dollars * NANOS_PER_MILLION).round());
    match nanos {
        // As an `f64` the largest amount is one more than that.
        Some(nanos) if (0.0..i64::MAX as f64).contains(&nanos) => Ok(Money::from_nanos(nanos as i64)),
        _ => Err(format!("`{name}` is no price: {value}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::money::Tokens;

    fn table(json: &str) -> PriceTable {
        PriceTable::read(json, DateTime::UNIX_EPOCH).unwrap()
    }

    fn dollars(text: &str) -> Option<Money> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn the_table_that_comes_with_it_can_be_read_and_has_whole_prices() {
        let table = PriceTable::built_in();
        assert!(table.len() > 20);
        for (model, price) in &table.prices {
            assert!(price.input.is_some() && price.output.is_some() && price.cache_read.is_some(), "{model}");
            assert!(price.as_of <= Utc::now(), "{model}");
            // A price per token in the place of one for a million would be seen by this.
            let (least, most) = (dollars("0.01").unwrap(), dollars("200").unwrap());
            assert!(price.output.is_some_and(|price| (least..=most).contains(&price)), "{model}");
        }
    }

    #[test]
    fn prices_are_exact_whatever_binary_fractions_say() {
        let price = table(
            r#"{"m": {"input_cost_per_token": 3e-06, "output_cost_per_token": 1.5e-05, "cache_read_input_token_cost": 3e-07,
                      "cache_creation_input_token_cost": 3.75e-06, "output_cost_per_reasoning_token": 0.0000123,
                      "max_tokens": 8192, "mode": "chat"}}"#,
        );
        let price = price.price("m").unwrap();
        assert_eq!([price.input, price.output], [dollars("3"), dollars("15")]);
        assert_eq!([price.cache_read, price.cache_write], [dollars("0.3"), dollars("3.75")]);
        assert_eq!(price.reasoning, dollars("12.3"));
        let used = Tokens { input: 7, output: 11, cache_read: 13, cache_write: 17, reasoning: 19 };
        // 21 + 165 + 3.9 + 63.75 + 233.7 millionths of a dollar.
        assert_eq!(price.amount(&used), dollars("0.00048735"));
    }

    #[test]
    fn thinking_costs_what_output_does_and_nothing_else_is_made_up() {
        let table = table(r#"{"m": {"input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06}}"#);
        let price = table.price("m").unwrap();
        assert_eq!((price.reasoning, price.cache_read, price.cache_write), (dollars("2"), None, None));
    }

    #[test]
    fn a_long_prompt_costs_what_its_tier_says() {
        let table = table(
            r#"{"m": {"input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06, "input_cost_per_token_above_200k_tokens": 2e-06,
                      "output_cost_per_token_above_200k_tokens": 4e-06, "cache_read_input_token_cost_above_1000k_tokens": 1e-06,
                      "cache_creation_input_token_cost_above_1hr": 6e-06, "input_cost_per_image_above_200k_tokens": 1}}"#,
        );
        let tiers = &table.price("m").unwrap().tiers;
        assert_eq!(tiers.iter().map(|tier| tier.above_tokens).collect::<Vec<_>>(), [200_000, 1_000_000]);
        assert_eq!((tiers[0].input, tiers[0].output, tiers[0].cache_read), (dollars("2"), dollars("4"), None));
        assert_eq!((tiers[1].input, tiers[1].cache_read), (None, dollars("1")));
    }

    #[test]
    fn a_model_is_found_with_its_provider_and_its_date_but_never_by_half_a_name() {
        let entry = |price: f64| format!(r#"{{"input_cost_per_token": {price}, "output_cost_per_token": 0}}"#);
        let table = table(&format!(
            r#"{{"sonnet-4": {}, "sonnet-4-20250101": {}, "other/sonnet-4": {}, "free": {}}}"#,
            entry(1e-6),
            entry(2e-6),
            entry(3e-6),
            entry(0.0)
        ));
        let input = |model: &str| table.price(model).and_then(|price| price.input);
        for (model, price) in [
            ("sonnet-4", "1"),
            ("sonnet-4-20250101", "2"),
            ("sonnet-4-20251231", "1"),
            ("sonnet-4-2025-12-31", "1"),
            ("anthropic/sonnet-4", "1"),
            ("gateway/anthropic/sonnet-4-20251231", "1"),
            ("other/sonnet-4", "3"),
            ("other/sonnet-4-20250101", "2"),
            ("free", "0"),
        ] {
            assert_eq!(input(model), dollars(price), "{model}");
        }
        for model in [
            "sonnet",
            "sonnet-4.5",
            "sonnet-4-2025123",
            "sonnet-4-latest",
            "-20250101",
            "",
            "/",
            "sonnet-4/",
            "ünï-2025-01-0x",
        ] {
            assert_eq!(input(model), None, "{model}");
        }
    }

    #[test]
    fn the_upper_table_wins() {
        let price = |input: &str| Price::new(DateTime::UNIX_EPOCH).input(input.parse().unwrap());
        let below = PriceTable::new().with("a", price("1")).with("b", price("2"));
        let table = PriceTable::new().with("b", price("3")).over(below);
        assert_eq!(table.price("a").unwrap().input, dollars("1"));
        assert_eq!(table.price("b").unwrap().input, dollars("3"));
        assert!(!table.is_empty() && PriceTable::new().is_empty());
    }

    #[test]
    fn what_is_not_sold_by_the_token_is_passed_over_and_what_is_no_price_is_refused() {
        let odd = r#"{"sample_spec": {"input_cost_per_token": "words"}, "fallback_generalizations": [], "picture": {"output_cost_per_image": 0.04}, "empty": {}}"#;
        assert!(table(odd).is_empty());
        let refused = |json: &str| PriceTable::read(json, DateTime::UNIX_EPOCH).unwrap_err().to_string();
        for (value, told) in [("-1e-6", "-1e-6"), ("\"3\"", "\"3\""), ("1e9", "1000000000.0"), ("null", "null")] {
            let error = refused(&format!(r#"{{"m": {{"input_cost_per_token": {value}}}}}"#));
            assert_eq!(error, format!("the table of prices: model `m`: `input_cost_per_token` is no price: {told}"));
        }
        assert_eq!(refused(r#"{"m": 3}"#), "the table of prices: model `m`: is no object");
        assert!(refused("[]").starts_with("the table of prices: invalid type: sequence, expected a map"));
    }

    #[test]
    fn a_file_is_as_old_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prices.json");
        std::fs::write(&path, r#"{"m": {"input_cost_per_token": 1e-06}}"#).unwrap();
        let written: DateTime<Utc> = std::fs::metadata(&path).unwrap().modified().unwrap().into();
        assert_eq!(PriceTable::open(&path).unwrap().price("m").unwrap().as_of, written);
        std::fs::write(&path, "{").unwrap();
        let error = PriceTable::open(&path).unwrap_err().to_string();
        assert!(error.starts_with(&format!("the table of prices `{}`: EOF while parsing", path.display())), "{error}");
        let error = PriceTable::open(folder.path().join("none")).unwrap_err().to_string();
        assert!(error.ends_with("No such file or directory (os error 2)"), "{error}");
    }
}
