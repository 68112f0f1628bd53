-- Question: How long is the longest execution of each query, and how much of the time allowed is that?
-- One row a group (a query) with an ended execution whose times are known: the longest of its executions, its
-- share of the harness time-out (null where the run did not state one), and how many ran into a time-out.
-- Then: the longest execution is what a group waits for (`--by longest_s`); a share near 1 for many queries
-- asks for another time-out, a low one with a late group for a look into that execution's calls.
-- Empty: no execution has ended, or none knows when it began and ended (imported calls do not say).
-- Key: group_id
with timed as (
    select
        group_id,
        execution_id,
        status,
        (finished_us - launched_us) / 1e6 as seconds
    from executions
    where is_current and launched_us > 0 and finished_us > launched_us
),

final as (
    select
        t.group_id,
        count(*) as executions,
        arg_max(t.execution_id, (t.seconds, t.execution_id)) as longest_execution,
        arg_max(t.status, (t.seconds, t.execution_id)) as status,
        max(t.seconds) as longest_s,
        quantile_cont(t.seconds, 0.5) as p50_s,
        any_value(p.harness_timeout_s) as timeout_s,
        max(t.seconds / nullif(p.harness_timeout_s, 0)) as share,
        count(*) filter (t.status in ('harness_timeout', 'overall_timeout')) as timed_out
    from timed as t
    cross join run_settings as p
    group by t.group_id
)

select * from final
