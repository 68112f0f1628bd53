-- Question: How long does a group take from its dispatch to being ready, and what takes so long?
-- One row a group that was made ready; seconds, in the order they pass: until its first execution was
-- launched, until its last one ended, until its last score that counts, until its rows were derived. Null
-- where a time is unknown.
-- Then: `running_s` far above the others is one slow execution (`last_execution`, see longest_execution);
-- `queued_s` asks for more slots, `scoring_s` for more evaluators, `deriving_s` for more ingest workers.
-- Empty: no group has been made ready: executions are still running, or no worker derives groups here.
-- Key: group_id
with ran as (
    select
        group_id,
        min(launched_us) filter (launched_us > 0) as launched_us,
        max(finished_us) filter (finished_us > 0 and is_current) as finished_us,
        arg_max(execution_id, (finished_us, execution_id)) filter (is_current) as last_execution
    from executions
    group by group_id
),

scored as (
    select s.group_id, max(s.time_us) as scored_us
    from scores as s
    join groups as g on g.group_id = s.group_id
    where s.log_offset < g.scores_end and s.time_us > 0
    group by s.group_id
),

final as (
    select
        g.group_id,
        g.dispatch_version,
        (g.ready_us - g.dispatched_us) / 1e6 as total_s,
        (r.launched_us - g.dispatched_us) / 1e6 as queued_s,
        (r.finished_us - r.launched_us) / 1e6 as running_s,
        greatest(s.scored_us - r.finished_us, 0) / 1e6 as scoring_s,
        (g.ready_us - greatest(s.scored_us, r.finished_us)) / 1e6 as deriving_s,
        r.last_execution
    from groups as g
    left join ran as r on r.group_id = g.group_id
    left join scored as s on s.group_id = g.group_id
    where g.ready_us is not null
)

select * from final
