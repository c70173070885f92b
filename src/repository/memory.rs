//! stub
/// x
#[derive(Debug)]
pub struct MemoryRepository;
