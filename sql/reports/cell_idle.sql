-- Question: How much of its time is each cell idle?
-- One row a cell (null: the launch named none, all of these together): from its first launch to its last
-- execution's end, `live_s` with an execution running, `calling_s` with a model call in flight. `share` is
-- the idle part: no call in flight. Executions and calls are means over the whole time.
-- Then: idle with executions live is harness and tool time: run more of them at once; idle without is a
-- scheduler that dispatches too late.
-- Empty: no execution knows when it was launched (imported calls do not say).
-- Key: cell
with ran as (
    select
        nullif(e.cell, '') as cell,
        e.execution_id,
        e.launched_us,
        coalesce(e.finished_us, c.last_us) as finished_us
    from executions as e
    cross join clock as c
    where e.launched_us > 0 and coalesce(e.finished_us, c.last_us) > e.launched_us
),

whole as (
    select cell, min(launched_us) as first_us, max(finished_us) as last_us
    from ran
    group by cell
),

intervals as (
    select cell, 'execution' as kind, launched_us as began_us, finished_us as ended_us
    from ran
    union all
    select r.cell, 'call', greatest(c.started_us, r.launched_us), least(c.finished_us, r.finished_us)
    from calls as c
    join ran as r on r.execution_id = c.execution_id
    where c.started_us > 0 and c.finished_us > c.started_us
),

following as (
    select
        *,
        max(ended_us) over (
            partition by cell, kind order by began_us, ended_us
            rows between unbounded preceding and 1 preceding
        ) as covered_us
    from intervals
    where ended_us > began_us
),

summed as (
    select
        cell,
        count(*) filter (kind = 'execution') as executions,
        coalesce(sum(ended_us - began_us) filter (kind = 'execution'), 0)::bigint as executions_us,
        coalesce(sum(ended_us - began_us) filter (kind = 'call'), 0)::bigint as calls_us,
        coalesce(sum(greatest(ended_us - greatest(began_us, coalesce(covered_us, began_us)), 0))
            filter (kind = 'execution'), 0)::bigint as live_us,
        coalesce(sum(greatest(ended_us - greatest(began_us, coalesce(covered_us, began_us)), 0))
            filter (kind = 'call'), 0)::bigint as calling_us
    from following
    group by cell
),

final as (
    select
        s.cell,
        s.executions,
        (w.last_us - w.first_us) / 1e6 as seconds,
        s.live_us / 1e6 as live_s,
        s.calling_us / 1e6 as calling_s,
        1 - s.calling_us / (w.last_us - w.first_us) as share,
        s.executions_us / (w.last_us - w.first_us) as executions_at_once,
        s.calls_us / (w.last_us - w.first_us) as calls_at_once
    from summed as s
    join whole as w on w.cell is not distinct from s.cell
)

select * from final
