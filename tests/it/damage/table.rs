//! Rows and columns as SQLite stores them, for reading all of them and for writing what no verb would.

use std::path::Path;

use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, ErrorCode, params_from_iter};

/// A table with the columns by which one of its rows is found.
#[derive(Debug, PartialEq)]
pub(super) struct Table {
    pub(super) name: String,
    pub(super) columns: Vec<String>,
    pub(super) key: Vec<String>,
}

/// A stored value: its type, and its bytes as they are.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stored {
    Null,
    Integer(i64),
    Real(f64),
    Text(Vec<u8>),
    Blob(Vec<u8>),
}

impl Stored {
    fn of(value: ValueRef<'_>) -> Stored {
        match value {
            ValueRef::Null => Stored::Null,
            ValueRef::Integer(number) => Stored::Integer(number),
            ValueRef::Real(number) => Stored::Real(number),
            ValueRef::Text(bytes) => Stored::Text(bytes.to_vec()),
            ValueRef::Blob(bytes) => Stored::Blob(bytes.to_vec()),
        }
    }

    /// What stands for it in a statement: text may be no UTF-8, and is bound as bytes.
    fn placeholder(&self) -> &'static str {
        if matches!(self, Stored::Text(_)) { "CAST(? AS TEXT)" } else { "?" }
    }

    fn bound(&self) -> Value {
        match self {
            Stored::Null => Value::Null,
            Stored::Integer(number) => Value::Integer(*number),
            Stored::Real(number) => Value::Real(*number),
            Stored::Text(bytes) | Stored::Blob(bytes) => Value::Blob(bytes.clone()),
        }
    }

    /// How many bits it has.
    pub(super) fn bits(&self) -> usize {
        match self {
            Stored::Null | Stored::Real(_) => 0,
            Stored::Integer(_) => 64,
            Stored::Text(bytes) | Stored::Blob(bytes) => bytes.len() * 8,
        }
    }

    /// The same with one bit turned over.
    pub(super) fn flipped(&self, bit: usize) -> Stored {
        let flip = |bytes: &Vec<u8>| {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        };
        match self {
            Stored::Null | Stored::Real(_) => self.clone(),
            Stored::Integer(number) => Stored::Integer(number ^ (1 << bit)),
            Stored::Text(bytes) => Stored::Text(flip(bytes)),
            Stored::Blob(bytes) => Stored::Blob(flip(bytes)),
        }
    }
}

pub(super) type Row = Vec<Stored>;

/// A connection that writes whatever it is told.
pub(super) fn reckless(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    for (pragma, value) in [("ignore_check_constraints", "ON"), ("foreign_keys", "OFF"), ("synchronous", "OFF")] {
        connection.pragma_update(None, pragma, value).unwrap();
    }
    connection
}

/// All tables, by name.
pub(super) fn tables(connection: &Connection) -> Vec<Table> {
    let mut names = connection.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").unwrap();
    let names = names.query_map([], |row| row.get::<_, String>(0)).unwrap();
    names.map(|name| table(connection, &name.unwrap())).collect()
}

pub(super) fn table(connection: &Connection, name: &str) -> Table {
    let mut select = connection.prepare("SELECT name, pk FROM pragma_table_info(?1) ORDER BY cid").unwrap();
    let columns = select.query_map([name], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?))).unwrap();
    let columns: Vec<(String, i64)> = columns.collect::<rusqlite::Result<_>>().unwrap();
    let key = columns.iter().filter(|(_, place)| *place > 0).map(|(name, _)| name.clone()).collect();
    Table { name: name.to_owned(), columns: columns.into_iter().map(|(name, _)| name).collect(), key }
}

impl Table {
    /// All rows, in the order of the key.
    pub(super) fn rows(&self, connection: &Connection) -> rusqlite::Result<Vec<Row>> {
        let (columns, key) = (self.columns.join(", "), self.key.join(", "));
        let mut select = connection.prepare(&format!("SELECT {columns} FROM {} ORDER BY {key}", self.name))?;
        let rows = select
            .query_map([], |row| (0..self.columns.len()).map(|index| row.get_ref(index).map(Stored::of)).collect())?;
        rows.collect()
    }

    /// Writes one column of a row; `false` if the key of another row forbids it.
    pub(super) fn write(&self, connection: &Connection, row: &Row, column: usize, value: &Stored) -> bool {
        let key: Vec<&Stored> = self.key.iter().map(|name| &row[self.index(name)]).collect();
        let conditions: Vec<String> =
            self.key.iter().zip(&key).map(|(name, value)| format!("{name} IS {}", value.placeholder())).collect();
        let sql = format!(
            "UPDATE {} SET {} = {} WHERE {}",
            self.name,
            self.columns[column],
            value.placeholder(),
            conditions.join(" AND ")
        );
        let bound = std::iter::once(value.bound()).chain(key.into_iter().map(Stored::bound));
        match connection.execute(&sql, params_from_iter(bound)) {
            Ok(count) => {
                assert_eq!(count, 1, "{sql}");
                true
            }
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => false,
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::TypeMismatch) => false,
            Err(error) => panic!("{sql}: {error}"),
        }
    }

    pub(super) fn index(&self, column: &str) -> usize {
        self.columns.iter().position(|name| name == column).unwrap()
    }
}

/// Everything that a file holds, by table; an error if it cannot be read.
pub(super) fn dump(path: &Path) -> rusqlite::Result<Vec<(Table, Vec<Row>)>> {
    let connection = Connection::open(path)?;
    let mut names = connection.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")?;
    let names: Vec<String> = names.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let tables = names.into_iter().map(|name| table(&connection, &name));
    tables.map(|table| table.rows(&connection).map(|rows| (table, rows))).collect()
}
