-- Question: How are the differences between the trainer's and the engine's log-probabilities spread?
-- One row a lag and a bucket of |pi - mu| (as in mismatch_by_lag), over all steps whose trainer said so: the
-- targets with a difference above `above` and up to `up_to`, their share of the lag's targets, and the share
-- up to there (`within`). `largest` is the largest difference of the lag.
-- Then: `--where "lag = 0 and up_to = 0.02"` shows in `within` how well trainer and engine agree; where that
-- is far below 1 they compute differently: see trainer.precision and engine.dtype.
-- Empty: no committed step states how its differences are spread: nothing was trained, or by an older
-- trainer.
-- Key: lag, up_to
with entries as (
    select
        unnest(
            from_json(
                json_extract(if(json_valid(statistics), statistics, '{}'), '$.by_lag'),
                '[{"lag": "BIGINT", "gap_abs_max": "DOUBLE", "gap_counts": "MAP(VARCHAR, BIGINT)"}]'
            ),
            max_depth := 2
        )
    from steps
    where new_version is not null
),

counts as (
    select lag, unnest(map_entries(gap_counts), max_depth := 2)
    from entries
),

buckets as (
    select lag, key::double as up_to, sum(value)::bigint as targets
    from counts
    group by lag, up_to
),

largest as (
    select lag, max(gap_abs_max) as largest
    from entries
    where gap_counts is not null
    group by lag
),

final as (
    select
        b.lag,
        coalesce(lag(b.up_to) over by_size, 0.0) as above,
        b.up_to,
        b.targets,
        b.targets / sum(b.targets) over (partition by b.lag) as share,
        sum(b.targets) over by_size / sum(b.targets) over (partition by b.lag) as within,
        l.largest
    from buckets as b
    join largest as l on l.lag is not distinct from b.lag
    window by_size as (partition by b.lag order by b.up_to)
)

select * from final
