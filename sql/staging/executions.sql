-- One row a launched execution; status, calls and finished_us are null while it runs.
-- A place of a group (its `index`) that was lost is launched again under another execution id: the
-- highest attempt is the current one, the others are history and never trained.
-- Key: group_id, execution_id
with known as (
    select
        execution_id,
        arg_min(
            {
                group_id: group_id, index: index, attempt: attempt, cell: cell,
                time_us: time_us, log_offset: log_offset
            },
            (log_partition, log_offset)
        ) filter (type = 'execution.launched') as launched,
        arg_min(
            {status: status, calls: calls, detail: detail, time_us: time_us}, (log_partition, log_offset)
        ) filter (type = 'execution.finished') as finished
    from event_executions
    where type in ('execution.launched', 'execution.finished')
    group by execution_id
),

final as (
    select
        launched.group_id,
        execution_id,
        launched.index,
        launched.attempt,
        launched.cell,
        finished.status,
        finished.calls,
        finished.detail,
        launched.time_us as launched_us,
        finished.time_us as finished_us,
        lag(launched.index) over (
            partition by launched.group_id
            order by launched.index, launched.attempt desc, launched.log_offset desc, execution_id desc
        ) is distinct from launched.index as is_current
    from known
    where launched is not null
)

select * from final
