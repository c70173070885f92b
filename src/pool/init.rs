//! What is done once, before the first worker starts.

use crate::executor::{CancelToken, ExecuteError};

/// What a pool does before its first worker starts: to log in, to wait for a server. A closure is one.
///
/// ```
/// use workcrew::{Call, CancelToken, ExecuteError, InitHook, WorkPool, WorkResult};
/// # use workcrew::{MemoryRepository, NewJob, Repository};
/// # let repository = MemoryRepository::new();
/// # let job = repository.create_job(&NewJob::named("a job"))?;
///
/// struct LogIn {
///     user: String,
/// }
///
/// impl InitHook for LogIn {
///     fn init(self: Box<Self>, _: &CancelToken) -> Result<(), ExecuteError> {
///         Err(ExecuteError::give_up(format!("{} may not", self.user)))
///     }
/// }
///
/// let pool = WorkPool::builder(job.id, |_: &Call<'_>| Ok(WorkResult::empty()), repository)
///     .init_with(LogIn { user: "ada".to_owned() })
///     .start()?;
/// let error = pool.await_ready().unwrap_err();
/// assert_eq!(error.to_string(), "the pool did not start: init_hook: executor: ada may not");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait InitHook: Send + 'static {
    /// Called once, on a thread of its own. When the pool is stopped meanwhile, the token says so.
    ///
    /// # Errors
    ///
    /// As it likes. The pool does not start then.
    fn init(self: Box<Self>, cancel: &CancelToken) -> Result<(), ExecuteError>;
}

impl<F> InitHook for F
where
    F: FnOnce(&CancelToken) -> Result<(), ExecuteError> + Send + 'static,
{
    fn init(self: Box<Self>, cancel: &CancelToken) -> Result<(), ExecuteError> {
        self(cancel)
    }
}

/// Nothing is to be done first: what a pool has unless told otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoInit;

impl InitHook for NoInit {
    fn init(self: Box<Self>, _: &CancelToken) -> Result<(), ExecuteError> {
        Ok(())
    }
}
