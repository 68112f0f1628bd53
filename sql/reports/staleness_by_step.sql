-- Question: How stale is what each step learns from, by group and by token?
-- One row a step that consumed groups. `d` is of groups: versions between dispatch and step. `token_d` is of
-- their target tokens: versions between the weights that sampled a token and the step; it is the smaller one
-- where weights are published while executions run. Means and extremes are over what is known; how much is
-- not is counted beside them, and is never a number.
-- Then: keep d about the planned phi + (mu - 1) / 2; where it grows from step to step the trainer falls
-- behind.
-- Empty: no group has been consumed: nothing was trained from this lake.
-- Key: step
with by_group as (
    select
        step,
        count(*) as groups,
        count(*) - count(d) as groups_unknown,
        min(d) as d_min,
        case when count(d) > 0 then sum(d)::double / count(d) end as d_mean,
        max(d) as d_max
    from staleness
    group by step
),

tokens as (
    select
        s.step,
        r.output_end - r.output_start as tokens,
        s.consumed_version - r.version as d
    from sampled_ranges as r
    join staleness as s on s.group_id = r.group_id
    where r.path is not null
),

by_token as (
    select
        step,
        sum(tokens)::bigint as targets,
        coalesce(sum(tokens) filter (d is null), 0)::bigint as targets_unknown,
        case when count(d) > 0 then sum(tokens * d)::double / sum(tokens) filter (d is not null) end
            as token_d_mean,
        max(d) as token_d_max
    from tokens
    group by step
),

final as (
    select
        g.step,
        g.groups,
        g.groups_unknown,
        g.d_min,
        g.d_mean,
        g.d_max,
        coalesce(t.targets, 0) as targets,
        coalesce(t.targets_unknown, 0) as targets_unknown,
        t.token_d_mean,
        t.token_d_max
    from by_group as g
    left join by_token as t on t.step = g.step
)

select * from final
