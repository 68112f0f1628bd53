-- Question: How far is the trained policy from the one that sampled, by version lag?
-- One row a lag (versions between a group's dispatch and its step; null: unknown) over all steps: the targets
-- that were computed, and of pi - mu (log-probabilities: trainer's now, engine's then) the mean, the mean
-- size, the share above ln 2 (twice or half as likely), and the k3 estimate of KL(mu || pi).
-- Then: what is there at lag 0 is the engine's own difference from the trainer; what grows with the lag is
-- staleness: lower phi or mu where it is too much.
-- Empty: no committed step states its mismatch by lag: nothing was trained, or by an older trainer.
-- Key: lag
with stated as (
    select
        step,
        unnest(
            from_json(
                json_extract(if(json_valid(statistics), statistics, '{}'), '$.by_lag'),
                '[{"lag": "BIGINT", "targets": "BIGINT", "gap": "DOUBLE", "gap_abs": "DOUBLE", '
                || '"gap_large": "DOUBLE", "kl3": "DOUBLE"}]'
            ),
            max_depth := 2
        )
    from steps
    where new_version is not null
),

listed as (
    select
        lag,
        count(*) as steps,
        sum(targets)::bigint as targets,
        list_sum(list(targets * gap order by step)) as gap,
        list_sum(list(targets * gap_abs order by step)) as gap_abs,
        list_sum(list(targets * gap_large order by step)) as gap_large,
        list_sum(list(targets * kl3 order by step)) as kl3
    from stated
    where targets > 0
    group by lag
),

final as (
    select
        lag,
        steps,
        targets,
        targets / sum(targets) over () as share,
        gap / targets as gap_mean,
        gap_abs / targets as gap_abs_mean,
        gap_large / targets as gap_large,
        kl3 / targets as kl3
    from listed
)

select * from final
