//! stub
/// stub
pub fn verify() {}
