//! stub
/// x
#[derive(Debug)]
pub struct SqliteRepository;
