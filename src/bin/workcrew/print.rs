//! Tables, numbers and costs as they are printed.

use std::io::{self, Write};

use serde::Serialize;
use workcrew::audit::visible::{is_obeyed, line};
use workcrew::{Cost, Money};

use crate::trouble::Trouble;

/// Rows in columns that are as wide as they need be. What is in them is made harmless here.
#[derive(Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<usize>,
    limits: Vec<(usize, usize)>,
}

impl Table {
    /// A table with these titles.
    pub fn new<const N: usize>(titles: [&str; N]) -> Table {
        Table { rows: vec![titles.map(str::to_owned).to_vec()], ..Table::default() }
    }

    /// Numbers stand on the right.
    pub fn right(mut self, columns: &[usize]) -> Table {
        self.right = columns.to_vec();
        self
    }

    /// Of what is in this column no more than so many characters are shown.
    pub fn limit(mut self, column: usize, chars: usize) -> Table {
        self.limits.push((column, chars));
        self
    }

    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        let shown = cells.into_iter().enumerate().map(|(column, cell)| {
            let limit = self.limits.iter().find(|(of, _)| *of == column).map_or(usize::MAX, |(_, chars)| *chars);
            if limit == usize::MAX { line(&cell).to_string() } else { line(&cell).cut(limit) }
        });
        self.rows.push(shown.collect());
    }

    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut text = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                let cell =
                    if self.right.contains(&column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
                text.push_str(if column == 0 { "" } else { "  " });
                text.push_str(&cell);
            }
            writeln!(out, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

/// One value on one line.
pub fn json(out: &mut dyn Write, value: &impl Serialize) -> Result<(), Trouble> {
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut *out, Harmless))?;
    Ok(writeln!(out)?)
}

/// Writes what a batch tells. That nobody reads it is no reason to end the batch.
pub fn if_read(out: &mut dyn Write, told: &[u8]) -> Result<(), Trouble> {
    match out.write_all(told).and_then(|()| out.flush()).map_err(Trouble::from) {
        Err(Trouble::NobodyReads) => Ok(()),
        written => written,
    }
}

/// Writes whatever a terminal would obey as JSON allows: `\u001b`.
pub struct Harmless;

impl serde_json::ser::Formatter for Harmless {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        let mut seen = 0;
        for (at, sign) in text.char_indices().filter(|&(_, sign)| is_obeyed(sign)) {
            out.write_all(&text.as_bytes()[seen..at])?;
            for half in sign.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{half:04x}")?;
            }
            seen = at + sign.len_utf8();
        }
        out.write_all(&text.as_bytes()[seen..])
    }
}

/// A number with its thousands apart.
pub fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// An option with its value, as they are written behind a command. A value that looks like an option is none only if nothing is between them.
pub fn option(name: &str, value: &str) -> String {
    let between = if value.starts_with('-') { '=' } else { ' ' };
    format!(" --{name}{between}{}", word(value))
}

/// A word as a shell reads it, and as nothing obeys it.
pub fn word(text: &str) -> String {
    let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "._-/:".contains(sign);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    if !text.chars().any(is_obeyed) {
        return format!("'{}'", text.replace('\'', "'\\''"));
    }
    let escaped = text.chars().map(|sign| match sign {
        '\'' | '\\' => format!("\\{sign}"),
        sign if is_obeyed(sign) => format!("\\U{:08x}", u32::from(sign)),
        sign => sign.to_string(),
    });
    format!("$'{}'", escaped.collect::<String>())
}

/// Reads a number from 1.
pub fn positive(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|&number: &usize| number > 0);
    number.ok_or_else(|| format!("`{text}` is no number from 1"))
}

/// An amount that can be spent: `5`, `$5` or `5usd`.
pub fn dollars(text: &str) -> Result<Money, String> {
    let number = ["usd", "USD"].iter().find_map(|unit| text.strip_suffix(unit)).map_or(text, str::trim_end);
    let amount = number.parse().ok().filter(|&amount| amount > Money::ZERO);
    amount.ok_or_else(|| format!("`{text}` is no amount of dollars above 0"))
}

/// The same, or `none` for no limit.
pub fn budget(text: &str) -> Result<Budget, String> {
    if text == "none" { Ok(Budget(None)) } else { dollars(text).map(|amount| Budget(Some(amount))) }
}

/// How much may be spent; `None` is without a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget(pub Option<Money>);

/// Reads a number from 0.
pub fn whole(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("`{text}` is no number from 0"))
}

/// A cost with four decimals, and with what is not known.
pub fn cost(cost: Cost) -> String {
    format!("{cost:.4}")
}

/// The same within a sentence.
pub fn spent(spent: Cost) -> String {
    if spent.known().is_some() { cost(spent) } else { "cost unknown".to_owned() }
}

/// `1 unit`, `2 units`.
pub fn count(number_of: u64, what: &str) -> String {
    format!("{} {what}{}", number(number_of), if number_of == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_cut_and_harmless() {
        let mut table = Table::new(["ID", "N", "WHAT"]).right(&[1]).limit(2, 6);
        table.row(["a".to_owned(), "1".to_owned(), "short".to_owned()]);
        table.row(["bé\u{1b}".to_owned(), "1,000".to_owned(), "much longer".to_owned()]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        let text = "ID            N  WHAT\na             1  short\nbé\\u{1b}  1,000  much …\n";
        assert_eq!(String::from_utf8(out).unwrap(), text);
    }

    #[test]
    fn a_word_is_written_as_a_shell_reads_it() {
        let words = ["a-1.db", "", "it's", "a b", "\u{202e}'\\x"].map(word);
        assert_eq!(words, ["a-1.db", "''", "'it'\\''s'", "'a b'", "$'\\U0000202e\\'\\\\x'"]);
        assert_eq!([option("job", "a b"), option("job", "-x")], [" --job 'a b'", " --job=-x"]);
    }

    #[test]
    fn numbers_have_their_thousands_apart() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(number), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!((count(1, "unit"), count(2, "unit")), ("1 unit".to_owned(), "2 units".to_owned()));
    }
}
