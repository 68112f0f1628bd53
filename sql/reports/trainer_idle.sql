-- Question: How much of its time does the trainer wait for groups?
-- One row a committed step: the seconds since the step before it (the first: since the first weights were
-- published), of these the seconds in which the trainer waited and no group was ready (`waited_s`, `share`),
-- and those in which it computed. What is left is publishing, checkpoints, and the time a stopped run lay
-- still. Null where the trainer did not say. `until_first_s`: until it took the step's first group.
-- Then: a share near 1 says rollouts are the bottleneck: more engines or slots; near 0 that the trainer is.
-- Empty: no step has been committed.
-- Key: step
with first_published as (
    select min(published_us) as published_us
    from publications
),

taken as (
    select coalesce(consumed_step, claimed_step) as step, min(claimed_us) as claimed_us
    from groups
    group by all
),

stated as (
    select
        step,
        coalesce(lag(committed_us) over (order by step), p.published_us) as began_us,
        committed_us,
        if(json_valid(statistics), statistics, '{}') as statistics
    from steps
    cross join first_published as p
    where new_version is not null
),

timed as (
    select
        s.step,
        (s.committed_us - s.began_us) / 1e6 as seconds,
        try_cast(json_extract_string(s.statistics, '$.waited_s') as double) as waited_s,
        try_cast(json_extract_string(s.statistics, '$.seconds') as double) as stated_s,
        (t.claimed_us - s.began_us) / 1e6 as until_first_s
    from stated as s
    left join taken as t on t.step = s.step
),

final as (
    select
        step,
        seconds,
        waited_s,
        waited_s / nullif(seconds, 0) as share,
        stated_s - waited_s as computed_s,
        until_first_s
    from timed
)

select * from final
