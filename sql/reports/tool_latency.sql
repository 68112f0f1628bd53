-- Question: How long do tools take, and how often do they fail?
-- One row a tool. Milliseconds are from the reply that asked for it leaving to its result coming back, over
-- the calls whose times are known. `failed` and `share` are of calls whose harness said how they ended;
-- `status_unknown` did not, and `looks_failed` is a guess from how their results begin (`error: ...`).
-- Then: a p99 far above the p50 holds whole groups back; a tool that often fails is asked wrongly: read its
-- calls in event_tools.
-- Empty: the lake has no tool calls: the harness uses none, or they were not captured (imported calls have
-- none).
-- Key: name
with timed as (
    select
        *,
        case when started_us > 0 and stopped_us >= started_us then duration_us / 1e3 end as duration_ms
    from tools
),

final as (
    select
        name,
        count(*) as calls,
        quantile_cont(duration_ms, 0.5) as p50_ms,
        quantile_cont(duration_ms, 0.99) as p99_ms,
        max(duration_ms) as max_ms,
        count(*) - count(duration_ms) as untimed,
        count(*) filter (status = 'error') as failed,
        count(*) filter (status = 'unknown') as status_unknown,
        count(*) filter (status = 'error') / nullif(count(*) filter (status <> 'unknown'), 0) as share,
        count(*) filter (status = 'unknown' and looks_failed) as looks_failed
    from timed
    group by name
)

select * from final
