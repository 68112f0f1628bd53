-- Question: Do executions that go deeper into sub-agents and summaries score better?
-- One row a role and range of depth: the current executions with `depth_from` to `depth_to` calls of that
-- role (0: none), and their scores. Ranges double, so that short and long executions both show.
-- Then: compare the rows of one role: a score that falls with depth says where the agent loses its way.
-- Empty: no execution with calls has ended.
-- Key: role, depth_from
with ended as (
    select e.execution_id, v.value
    from executions as e
    left join valid_executions as v on v.execution_id = e.execution_id
    where e.is_current and e.status is not null
),

roles as (
    select distinct role
    from calls
),

counted as (
    select execution_id, role, count(*) as depth
    from calls
    group by execution_id, role
),

placed as (
    select
        e.execution_id,
        e.value,
        r.role,
        case when c.depth > 0 then 1::bigint << (length(bin(c.depth)) - 1) else 0 end as depth_from
    from ended as e
    cross join roles as r
    left join counted as c on c.execution_id = e.execution_id and c.role = r.role
),

listed as (
    select
        role,
        depth_from,
        count(*) as executions,
        coalesce(list(value order by execution_id) filter (value is not null), []::double[]) as scores
    from placed
    group by role, depth_from
),

final as (
    select
        role,
        depth_from,
        greatest(2 * depth_from - 1, 0) as depth_to,
        executions,
        executions - len(scores) as executions_missing,
        case when len(scores) > 0 then list_sum(scores) / len(scores) end as score_mean
    from listed
)

select * from final
