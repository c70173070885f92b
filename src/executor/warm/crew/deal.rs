//! Who gets what: the processes that are there, the places that are free, and those that others have to leave.

use std::time::Duration;

use super::{Face, Grant, Hands, Leave, Leaving, Member, PASSED_BY_LIMIT, State, Waiter};
use crate::executor::warm::eviction::Candidate;
use crate::executor::warm::process::WarmProcess;
use crate::executor::warm::{Eviction, ProcessKey, Why};

impl<Memory> State<Memory> {
    pub(super) fn is_promised(&self, ticket: u64) -> bool {
        self.members.values().any(|member| member.promised_to == Some(ticket))
    }

    /// Whether the one process of the session that a key names is there, or somebody who waits was promised the place for it.
    pub(super) fn has_session(&self, key: &ProcessKey) -> bool {
        self.members.values().any(|member| member.is_of_session(key)) || self.is_session_promised(key)
    }

    fn is_session_promised(&self, key: &ProcessKey) -> bool {
        key.session.is_some() && self.waiters.iter().any(|waiter| waiter.key == *key && self.is_promised(waiter.ticket))
    }

    /// Whether the keeper is just looking at a process that somebody who waits may get.
    fn is_looked_at(&self, waiter: &Waiter<Memory>) -> bool {
        let wanted = ProcessKey { session: None, ..waiter.key.clone() };
        let takes_any = waiter.key.session.is_none() || waiter.key.session == waiter.resumed;
        let is_looked_at = |member: &Member<Memory>| matches!(member.hands, Hands::Keeper) && member.key == wanted;
        takes_any && self.members.values().any(is_looked_at)
    }

    /// Whether somebody waits for a place, and not for a process that is there or will be, and was not promised one.
    pub(super) fn needs_place(&self, waiter: &Waiter<Memory>) -> bool {
        waiter.grant.is_none() && !self.is_promised(waiter.ticket) && !self.has_session(&waiter.key)
    }

    /// Gives those who wait for a process of a key one that is there, the one that was used last.
    pub(super) fn deal_idle(&mut self, will_do: impl Fn(&Waiter<Memory>, &ProcessKey, &WarmProcess<Memory>) -> bool) {
        for place in 0..self.waiters.len() {
            let waiter = &self.waiters[place];
            if waiter.grant.is_some() {
                continue;
            }
            let will_do = |member: &Member<Memory>| match &member.hands {
                Hands::Idle(process) => !process.is_lost() && will_do(waiter, &member.key, process),
                _ => false,
            };
            let found = self.members.iter().filter(|(_, member)| will_do(member));
            let Some(number) = found.max_by_key(|(_, member)| member.face.last_activity).map(|(&number, _)| number)
            else {
                continue;
            };
            let passed: Vec<usize> = (0..place).filter(|&earlier| self.needs_place(&self.waiters[earlier])).collect();
            if passed.iter().any(|&earlier| self.waiters[earlier].passed_by >= PASSED_BY_LIMIT) {
                continue;
            }
            let Some(member) = self.members.get_mut(&number) else { continue };
            if let Hands::Idle(process) = std::mem::replace(&mut member.hands, Hands::Call) {
                passed.into_iter().for_each(|earlier| self.waiters[earlier].passed_by += 1);
                let waiter = &mut self.waiters[place];
                member.asked_for = Some(waiter.key.clone());
                waiter.grant = Some(Grant::Process(process));
                waiter.nudge.wake();
            }
        }
    }

    /// Gives those who still wait the places that are free, and promises them those of processes that can go. Says whether any has to.
    pub(super) fn deal_places(&mut self, max_workers: usize, eviction: Eviction, grace: Duration) -> bool {
        let mut has_evicted = false;
        for place in 0..self.waiters.len() {
            let (ticket, key) = (self.waiters[place].ticket, self.waiters[place].key.clone());
            if self.waiters[place].grant.is_some() || self.is_promised(ticket) {
                continue;
            }
            let same = self.members.iter().find(|(_, member)| member.is_of_session(&key));
            let victim = match same {
                // It is there, and will not do: nobody else wants it either.
                Some((&number, Member { hands: Hands::Idle(process), .. })) if !process.is_lost() => Some(number),
                Some(_) => continue,
                // It is about to be started by whoever came before.
                None if self.is_session_promised(&key) => continue,
                // It is brought back in a moment, or goes, and then it is dealt again.
                None if self.is_looked_at(&self.waiters[place]) => continue,
                None if self.members.len() < max_workers => {
                    self.grant_place(place);
                    continue;
                }
                None => eviction.choose(self.candidates()),
            };
            let Some(member) = victim.and_then(|victim| self.members.get_mut(&victim)) else { continue };
            if let Hands::Idle(process) = std::mem::replace(&mut member.hands, Hands::Leaving) {
                // The place is promised before anybody is told to end: there are never more than there may be.
                member.promised_to = Some(ticket);
                self.leaving.push(Leaving { process, how: Leave::ShutDown { why: Why::Evicted, grace } });
                has_evicted = true;
            }
        }
        has_evicted
    }

    pub(super) fn candidates(&self) -> impl Iterator<Item = Candidate> {
        self.members.iter().filter_map(|(&number, member)| match &member.hands {
            Hands::Idle(process) if !process.is_lost() => Some(Candidate {
                number,
                created_at: process.created_at,
                last_activity: process.last_activity,
                queries_processed: process.queries_processed,
            }),
            _ => None,
        })
    }

    /// Gives somebody who waits a place for a process.
    pub(super) fn grant_place(&mut self, place: usize) {
        self.started_ever += 1;
        let number = self.started_ever;
        let waiter = &mut self.waiters[place];
        let (key, face) = (waiter.key.clone(), Face::new());
        waiter.grant = Some(Grant::Place(number));
        waiter.nudge.wake();
        let member = Member { key, asked_for: None, hands: Hands::Call, promised_to: None, is_to_end: false, face };
        self.members.insert(number, member);
    }
}
