-- Question: How did each policy version reach the engines, and what ran meanwhile?
-- One row a published version. `took_s` is from the first request to an engine until it served, with the time
-- that the trainer waited for one that was away; `readback` the largest difference of its log-probability of
-- the probe from the trainer's. `calls` sampled with the version at all; `straddling` began under an older
-- one. Null is what the publication did not say.
-- Then: a readback that grows says that engine and trainer differ; where most calls straddle, executions wait
-- for weights.
-- Empty: no policy version has been published.
-- Key: version
with sampled as (
    select execution_id, call_id, version, min(version) over (partition by execution_id, call_id) as oldest
    from version_spans
    where version is not null
),

by_version as (
    select
        version,
        count(distinct (execution_id, call_id)) as calls,
        count(distinct (execution_id, call_id)) filter (oldest < version) as straddling
    from sampled
    group by version
),

final as (
    select
        p.policy_version as version,
        p.boundary,
        p.transport,
        p.took_us / 1e6 as took_s,
        p.readback,
        coalesce(s.calls, 0) as calls,
        coalesce(s.straddling, 0) as straddling
    from publications as p
    left join by_version as s on s.version = p.policy_version
)

select * from final
