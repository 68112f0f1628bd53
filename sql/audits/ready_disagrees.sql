-- One row a group whose `group.ready` in this set announced other numbers than its derived rows have, or
-- that has none.
-- Key: group_id
with announced as (
    select e.group_id, e.tokens, e.targets, e.executions_valid
    from event_groups as e
    join params as p on p.set_name = e.set_name
    where e.type = 'group.ready'
    qualify row_number() over (partition by e.group_id order by e.log_offset) = 1
),

lengths as (
    select group_id, sum(depth_end - depth_start)::bigint as tokens
    from nodes
    group by group_id
),

derived as (
    select w.group_id, sum(w.n_targets)::bigint as targets, count(*) filter (w.valid) as executions_valid
    from weights as w
    group by w.group_id
),

final as (
    select
        a.group_id,
        a.tokens as announced_tokens,
        coalesce(n.tokens, 0) as tokens,
        a.targets as announced_targets,
        d.targets,
        a.executions_valid as announced_valid,
        d.executions_valid
    from announced as a
    left join derived as d on d.group_id = a.group_id
    left join lengths as n on n.group_id = a.group_id
    where (a.tokens, a.targets, a.executions_valid)
        is distinct from (coalesce(n.tokens, 0), d.targets, d.executions_valid)
)

select * from final
