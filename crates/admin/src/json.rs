//! A round as one JSON object, as `herringbone status --json` prints it.

use crate::ask::{AskedMember, Round, rates};
use crate::waits::{self, group, name};
use herringbone::status::{Activity, JobStatus, MemberId, TableServerStatus, Way};
use serde_json::{Map, Value, json};

/// The state of a job: its members, and who waits for whom.
pub fn object(round: &Round) -> Value {
    let roster = round.roster.as_ref();
    let called = |ids: &[MemberId]| ids.iter().map(|id| name(round, *id)).collect::<Vec<_>>();
    let waits: Vec<Value> = waits::of(round)
        .iter()
        .map(|wait| {
            json!({
                "for": name(round, wait.on),
                "by": called(&wait.by),
                "operation": wait.operation.name,
                "group": group(round, wait.operation.group),
                "sequence": wait.operation.sequence,
                "seconds": wait.operation.age as f64 / 1e3,
                "more": wait.more,
                "why": wait.why,
            })
        })
        .collect();
    json!({
        "job": roster.map(|_| number(round.job)),
        "epoch": roster.map(|roster| roster.epoch()),
        "world": roster.map(|roster| roster.world()),
        "members": round.members.iter().map(|asked| member(round, asked)).collect::<Vec<_>>(),
        "waits": waits,
        "silent_seconds": round.silent_for.map(|silent| silent.as_secs_f64()),
    })
}

/// The number of a job as text: many programs cannot read an integer of this length exactly.
pub fn number(job: u64) -> String {
    format!("{job:016x}")
}

fn member(round: &Round, member: &AskedMember) -> Value {
    let rank = member.id.and_then(|id| round.roster.as_ref()?.rank_of(id));
    let mut fields = Map::from_iter([
        ("role".to_owned(), json!(member.role.map(|role| role.to_string()))),
        ("rank".to_owned(), json!(rank)),
        // Its name in errors and links if its rank or address is unknown.
        ("member".to_owned(), json!(member.id.map(MemberId::number))),
        ("address".to_owned(), json!(member.address)),
    ]);
    let heard = match &member.heard {
        Ok(heard) => heard,
        Err(error) => {
            fields.extend([
                ("answers".to_owned(), json!(false)),
                ("error".to_owned(), json!(error.to_string())),
            ]);
            return Value::Object(fields);
        }
    };
    let status = &heard.answer.status;
    fields.extend([
        ("answers".to_owned(), json!(true)),
        ("host".to_owned(), json!(status.host)),
        ("process".to_owned(), json!(status.process)),
    ]);
    match &status.activity {
        Activity::Forms { missing } => {
            fields.extend([
                ("forms".to_owned(), json!(true)),
                ("world".to_owned(), json!(heard.answer.identity.world)),
                ("missing".to_owned(), json!(missing)),
            ]);
        }
        Activity::Works(_) => {
            let job_status = member
                .job_status(round.job)
                .map(|now| stands(round, round.job, now, member.stood(round.job)));
            fields.extend(job_status.into_iter().flatten());
        }
        Activity::Serves { served, jobs, unlisted, tables } => {
            let jobs = jobs.iter().map(|served| {
                let (now, before) = (served.job_status.as_ref(), member.stood(served.job));
                let mut job = now.map(|now| stands(round, served.job, now, before)).unwrap_or_default();
                job.insert("job".to_owned(), json!(number(served.job)));
                job.insert("world".to_owned(), json!(served.world));
                Value::Object(job)
            });
            fields.extend([
                ("jobs".to_owned(), jobs.collect()),
                ("jobs_unlisted".to_owned(), json!(unlisted)),
                ("jobs_served".to_owned(), json!(served)),
            ]);
            fields.extend(tables.as_ref().map(|server| ("tables".to_owned(), table_server(server))));
        }
    }
    Value::Object(fields)
}

fn table_server(server: &TableServerStatus) -> Value {
    let ranges = server.ranges.iter().map(|range| {
        json!({
            "range": range.range,
            "owner": range.owner,
            "copies": range.copies,
            "unconfirmed": range.unconfirmed,
        })
    });
    let tables = server.tables.iter().map(|table| {
        let workers = table.workers.iter().map(|worker| {
            json!({
                "rank": worker.worker,
                "step": worker.step,
                "connected": worker.is_here,
                "left": worker.has_left,
            })
        });
        let hot = table.hot.iter().map(|hot| json!({"key": hot.key, "share": f64::from(hot.share) / 1e6}));
        json!({
            "name": table.name,
            "range": table.range,
            "what": table.kind,
            "keys": table.keys,
            "rows": table.rows,
            "bytes": table.bytes,
            "steps": table.version,
            "pulls_waiting": table.waiting,
            "pushes_with_nan": table.not_numbers,
            "workers_connected": table.present,
            "workers": workers.collect::<Vec<_>>(),
            "hot_keys": hot.collect::<Vec<_>>(),
        })
    });
    json!({
        "place": server.place,
        "servers": server.servers,
        "replicas": server.replicas,
        "memory": server.used,
        "memory_limit": server.limit,
        "ranges": ranges.collect::<Vec<_>>(),
        "tables": tables.collect::<Vec<_>>(),
        "tables_unlisted": server.unlisted,
    })
}

fn stands(round: &Round, job: u64, now: &JobStatus, before: Option<&JobStatus>) -> Map<String, Value> {
    // The members of other jobs are not known here: a reducer knows their workers.
    let called = |id: &MemberId| match job == round.job {
        true => name(round, *id),
        false => format!("rank {}", id.number()),
    };
    let groups = now.groups.iter().map(|group| {
        json!({
            "name": group.name,
            "group": group.group,
            "ranks": group.ranks,
            "generation": group.generation,
            "next": group.next,
            "over": group.over,
            "lost": group.lost,
        })
    });
    let operations = now.operations.iter().map(|operation| {
        json!({
            "name": operation.name,
            "group": now.group(operation.group).map(|group| &group.name),
            "sequence": operation.sequence,
            "seconds": operation.age as f64 / 1e3,
            "runs": operation.runs,
            "waits_for": operation.waits.iter().map(called).collect::<Vec<_>>(),
        })
    });
    let links = now.links.iter().map(|link| {
        let rates = rates(link, now, before);
        let (by, reason) = match &link.way {
            Way::Wanted => ("wanted", None),
            Way::Shm => ("shm", None),
            Way::Tcp => ("tcp", None),
            Way::Lost { reason } => ("lost", Some(reason)),
        };
        json!({
            "to": called(&link.to),
            "by": by,
            "reason": reason,
            "sent": link.sent,
            "received": link.received,
            "sent_per_second": rates.map(|[sent, _]| sent.round()),
            "received_per_second": rates.map(|[_, received]| received.round()),
        })
    });
    let [more_groups, more_operations, more_links] = now.unlisted;
    Map::from_iter([
        ("issued".to_owned(), json!(now.issued)),
        ("groups".to_owned(), groups.collect()),
        ("operations".to_owned(), operations.collect()),
        ("links".to_owned(), links.collect()),
        ("ports".to_owned(), json!(now.ports)),
        (
            "unlisted".to_owned(),
            json!({"groups": more_groups, "operations": more_operations, "links": more_links}),
        ),
    ])
}
