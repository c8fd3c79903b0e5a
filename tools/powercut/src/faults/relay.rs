//! The spool's disk fails while a server relays.

use posthaste_consumer::UNRECORDED_MAX;

use super::{Problems, until, wrong};
use crate::disk::Faults;
use crate::load::{Load, send};
use crate::mount::FileSystem;
use crate::recorded::RecoveryError;
use crate::relay::cuts::recover;
use crate::relay::hop::{Manner, NextHop};
use crate::relay::known::Known;
use crate::rig::{Environment, Rig, RigError};
use crate::server::Setup;

/// Mail waits and is relayed when the disk fails: from then on nothing is sent. After a power cut and a restart all of
/// it arrives; only mail sent without a record arrives twice.
pub fn spool_fails(environment: &Environment) -> Result<Problems, RigError> {
    let mut problems = Problems::new();
    for faults in
        [Faults { writes_fail: true, ..Faults::default() }, Faults { flushes_fail: true, ..Faults::default() }]
    {
        let load = Load { large_one_in: u64::MAX, ..Load::mixed(31) };
        let rig = Rig::new(environment, FileSystem::Ext4, 192 << 20)?;
        rig.disk.record();
        let hop = NextHop::start(&load, &rig.disk, Manner::Busy)?;
        let setup = Setup { next_hop: Some(hop.address), ..rig.setup() };
        let (image, events) = {
            let _mounted = rig.mount()?;
            rig.disk.started();
            let server = setup.start()?;
            let sent = send(&load, server.address, 4, 0..2000, |promise| rig.disk.mark(promise));
            if sent.acknowledged.is_empty() {
                return Err(RigError::NothingAcknowledged);
            }
            hop.set(Manner::Open);
            problems.extend(until("some of it is sent", || Ok(hop.taken() >= 200))?);
            rig.disk.set_faults(faults);
            let said = "no mail is sent to other hosts until the server is restarted";
            problems.extend(until(said, || Ok(server.read_log().contains(said)))?);
            let taken = hop.taken();
            // Sessions end before the next octet: what was on its way may still be taken.
            problems.extend(until("no session is left", || Ok(hop.sessions() == 0))?);
            if hop.taken() > taken + IN_FLIGHT_MAX {
                problems.push(format!("{} recipients were sent to on a failed spool", hop.taken() - taken));
            }
            let image = rig.disk.after_a_cut();
            rig.disk.set_faults(Faults::default());
            server.kill();
            (image, rig.disk.recorded().events)
        };
        let known = Known::after(&load, &events);
        match recover(&rig, &load, image, &known) {
            Ok((_, found)) => {
                problems.extend(wrong("after the restart", &found));
                if found.sent_again.len() as u64 > UNRECORDED_MAX {
                    problems.push(format!("{} recipients were sent to twice", found.sent_again.len()));
                }
            }
            Err(RecoveryError::Server(what) | RecoveryError::Unmountable(what)) => problems.push(what),
        }
    }
    Ok(problems)
}

/// Two messages for each connection to the next hop, of four recipients at most.
const IN_FLIGHT_MAX: u64 = 8 * 32;
