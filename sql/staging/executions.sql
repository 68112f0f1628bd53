-- One row a launched execution; status, calls and finished_us are null while it runs.
-- A place of a group (its `index`) that was lost is launched again under another execution id: the
-- highest attempt is the current one, the others are history and never trained.
-- Key: group_id, execution_id
with first_seen as (
    select *
    from event_executions
    where type in ('execution.launched', 'execution.finished')
    qualify lag(event_id) over (
        partition by group_id order by event_id, log_partition, log_offset
    ) is distinct from event_id
),

launched as (
    select group_id, execution_id, index, attempt, cell, time_us, log_offset
    from first_seen
    where type = 'execution.launched'
),

finished as (
    select execution_id, status, calls, detail, time_us
    from first_seen
    where type = 'execution.finished'
),

final as (
    select
        l.group_id,
        l.execution_id,
        l.index,
        l.attempt,
        l.cell,
        f.status,
        f.calls,
        f.detail,
        l.time_us as launched_us,
        f.time_us as finished_us,
        lag(l.index) over (
            partition by l.group_id order by l.index, l.attempt desc, l.log_offset desc, l.execution_id desc
        ) is distinct from l.index as is_current
    from launched as l
    left join finished as f on f.execution_id = l.execution_id
)

select * from final
