//! The view from outside: one binary, a module for each concern.

mod children;
mod crash;
mod faulty;
mod smoke;
mod storage;
