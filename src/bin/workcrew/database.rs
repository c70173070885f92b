//! Which database, and which of its jobs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use workcrew::audit::questions::all_jobs;
use workcrew::repository::UnitFilter;
use workcrew::repository::sqlite::SqliteArchive;
use workcrew::{Archive, Job, SqliteRepository};

use crate::print;
use crate::trouble::Trouble;

#[derive(Args, Clone, Debug)]
pub struct Database {
    /// The database
    #[arg(long, value_name = "FILE", default_value = "batch.db", env = "WORKCREW_DB")]
    pub db: PathBuf,
}

impl Database {
    /// Only to read it.
    pub fn archive(&self) -> Result<SqliteArchive, Trouble> {
        Ok(SqliteArchive::open(&self.db)?)
    }

    /// To change what is there.
    pub fn existing(&self) -> Result<SqliteRepository, Trouble> {
        // Only one who brings units makes a new file.
        SqliteArchive::open(&self.db)?;
        Ok(SqliteRepository::open(&self.db)?)
    }

    /// To put something in, also if it is not there yet.
    pub fn or_new(&self) -> Result<SqliteRepository, Trouble> {
        let folder = self.db.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.exists()) {
            let (db, folder) = (self.db.display(), folder.display());
            return Err(Trouble::Storage(format!("`{db}` cannot be made: there is no folder `{folder}`")));
        }
        Ok(SqliteRepository::open(&self.db)?)
    }

    /// A job, if there is a database with it; what is wrong with that is told when it is opened.
    pub fn peek(&self, job: &str) -> Option<Job> {
        self.archive().ok()?.job_named(job).ok()?
    }

    /// Refuses a file to be written that is the database or belongs to it, under whatever name.
    pub fn spare(&self, path: &Path) -> Result<(), Trouble> {
        self.own(path).map_or(Ok(()), |own| {
            let (path, own) = (path.display(), own.display());
            Err(Trouble::usage(format!("`{path}` is not written: it is the database's own `{own}`")))
        })
    }

    /// Which file of the database a path is, under whatever name.
    pub fn own(&self, path: &Path) -> Option<PathBuf> {
        let same = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        let meant = same(path)?;
        let named = |ending: &&str| {
            let mut own = self.db.as_os_str().to_owned();
            own.push(ending);
            PathBuf::from(own)
        };
        let endings = ["", "-wal", "-shm", ".search", ".search-wal", ".search-shm", ".search-journal"];
        endings.iter().map(named).find(|own| same(own) == Some(meant))
    }

    /// As it is written on a command line.
    pub fn as_argument(&self) -> String {
        let is_default = self.db.as_os_str() == "batch.db" && std::env::var_os("WORKCREW_DB").is_none();
        if is_default { String::new() } else { print::option("db", &self.db.display().to_string()) }
    }
}

#[derive(Args, Clone, Debug)]
pub struct OfJob {
    /// Only of this job; needed where several could be meant
    #[arg(long, value_name = "NAME")]
    pub job: Option<String>,
}

impl OfJob {
    /// The job that is meant, if one is named.
    pub fn find(&self, archive: &dyn Archive) -> Result<Option<Job>, Trouble> {
        self.job.as_deref().map(|name| named(archive, name)).transpose()
    }

    /// The job that is meant, or the only one that there is.
    pub fn one(&self, archive: &dyn Archive) -> Result<Job, Trouble> {
        self.only(archive, "say which with --job")
    }

    /// The same where all of them can be meant, if that is said.
    pub fn one_or_all(&self, archive: &dyn Archive) -> Result<Job, Trouble> {
        self.only(archive, "say which with --job, or --all-jobs")
    }

    fn only(&self, archive: &dyn Archive, advice: &str) -> Result<Job, Trouble> {
        if let Some(job) = self.find(archive)? {
            return Ok(job);
        }
        let mut jobs = all_jobs(archive)?;
        match jobs.len() {
            0 => Err(Trouble::usage("the database has no job yet")),
            1 => Ok(jobs.remove(0)),
            _ => {
                let names: Vec<String> = jobs.into_iter().map(|job| job.name).collect();
                Err(Trouble::usage(format!("there are several jobs, {advice}: {}", names.join(", "))))
            }
        }
    }

    /// All units of it.
    pub fn filter(&self, archive: &dyn Archive) -> Result<UnitFilter, Trouble> {
        Ok(self.find(archive)?.map_or_else(UnitFilter::default, |job| UnitFilter::job(job.id)))
    }
}

pub fn named(archive: &dyn Archive, name: &str) -> Result<Job, Trouble> {
    archive.job_named(name)?.ok_or_else(|| Trouble::usage(format!("there is no job `{name}`")))
}
