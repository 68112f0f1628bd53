-- Question: Which scores did each step learn from?
-- One row a step that consumed groups: the scores it learned from. `groups_flat` have no variance in their
-- scores, or fewer than two: they taught nothing.
-- Then: many flat groups are steps that learn from few executions: zero_variance names them.
-- Empty: no group has been consumed: nothing was trained from this lake.
-- Key: step
with members as (
    select g.consumed_step as step, e.group_id, e.execution_id, v.value
    from groups as g
    join executions as e on e.group_id = g.group_id
    left join valid_executions as v on v.execution_id = e.execution_id
    where g.state = 'CONSUMED' and e.is_current
),

listed as (
    select
        step,
        count(*) as executions,
        coalesce(list(value order by execution_id) filter (value is not null), []::double[]) as scores
    from members
    group by step
),

flat as (
    select
        g.consumed_step as step,
        count(*) as groups,
        count(*) filter (s.zero_variance or s.valid < 2) as groups_flat
    from groups as g
    left join group_statistics as s on s.group_id = g.group_id
    where g.state = 'CONSUMED'
    group by g.consumed_step
),

final as (
    select
        f.step,
        f.groups,
        f.groups_flat,
        coalesce(len(l.scores), 0) as executions_valid,
        coalesce(l.executions - len(l.scores), 0) as executions_missing,
        case when len(l.scores) > 0 then list_sum(l.scores) / len(l.scores) end as score_mean,
        list_min(l.scores) as score_min,
        list_max(l.scores) as score_max
    from flat as f
    left join listed as l on l.step = f.step
)

select * from final
