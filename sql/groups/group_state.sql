-- One row a dispatched group: how far it is, and what it waits for. It is complete when each of its places
-- has an execution that ended and is assessed (`missing` is an answer), and every call that these reported
-- is in the lake. A lost execution ends its place only with a `missing` assessment: until then it is to be
-- launched again. The ingest worker runs this often: no token list is read.
-- Key: group_id
with dispatched as (
    select group_id, arg_min(size, log_offset) as size
    from event_groups
    where type = 'group.dispatched'
    group by group_id
),

arrived as (
    select c.execution_id, count(distinct c.call_id) as calls
    from event_calls as c
    join executions as e on e.execution_id = c.execution_id
    where e.is_current and c.call_id < e.calls
    group by c.execution_id
),

places as (
    select
        e.group_id,
        d.size,
        e.status,
        e.status <> 'lost' or a.assessment = 'missing' as terminal,
        a.assessment,
        e.calls - coalesce(c.calls, 0) as calls_missing
    from executions as e
    join dispatched as d on d.group_id = e.group_id
    left join assessments as a on a.execution_id = e.execution_id
    left join arrived as c on c.execution_id = e.execution_id
    where e.is_current and e.index >= 0 and e.index < d.size
),

counted as (
    select
        d.group_id,
        d.size,
        count(p.group_id) as places_launched,
        count(*) filter (p.group_id is not null and p.status is null) as running,
        count(*) filter (p.terminal) as terminal,
        count(*) filter (p.terminal and p.assessment is not null) as assessed,
        coalesce(sum(p.calls_missing), 0)::bigint as calls_missing
    from dispatched as d
    left join places as p on p.group_id = d.group_id
    group by d.group_id, d.size
),

final as (
    select
        group_id,
        size,
        places_launched,
        terminal,
        assessed,
        calls_missing,
        assessed = size and calls_missing = 0 as complete,
        nullif(
            concat_ws(
                '; ',
                case when places_launched < size
                    then format('{} of {} executions not launched', size - places_launched, size) end,
                case when running > 0 then format('{} of {} executions running', running, size) end,
                case when places_launched > running + terminal
                    then format(
                        '{} of {} executions lost, to be launched again',
                        places_launched - running - terminal, size
                    ) end,
                case when assessed < terminal
                    then format('{} of {} executions not assessed', terminal - assessed, size) end,
                case when calls_missing > 0 then format('{} calls not in the lake', calls_missing) end
            ),
            ''
        ) as waiting_for
    from counted
)

select * from final
