-- Question: How long do ready groups wait for the trainer?
-- One row a step: seconds between a group being ready and the trainer taking it. The row without a step is of
-- the groups that wait now, as of the last event. Means are over groups whose times are known.
-- Then: ages that grow say that rollouts outrun the trainer: lower phi; ages of 0 that it starves:
-- trainer_idle.
-- Empty: no group has been made ready: executions are still running, or no worker derives groups here.
-- Key: step
with waited as (
    select
        g.group_id,
        coalesce(g.consumed_step, g.claimed_step) as step,
        (coalesce(g.claimed_us, g.consumed_us, c.last_us) - g.ready_us) / 1e6 as age_s
    from groups as g
    cross join clock as c
    where g.ready_us is not null
),

final as (
    select
        step,
        count(*) as groups,
        count(*) - count(age_s) as groups_unknown,
        quantile_cont(age_s, 0.5) as age_p50_s,
        max(age_s) as age_max_s,
        arg_max(group_id, (age_s, group_id)) as oldest_group
    from waited
    group by step
)

select * from final
