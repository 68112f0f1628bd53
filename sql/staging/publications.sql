-- One row a published policy version: since when the engines serve it, how it reached them and how long that
-- took, and the largest difference of their log-probability of the probe. What was not told is null.
-- Key: policy_version
with final as (
    select
        policy_version,
        boundary,
        weights,
        digest,
        time_us as published_us,
        nullif(transport, '') as transport,
        nullif(took_us, 0) as took_us,
        readback
    from event_policy
    where type = 'policy.published'
    qualify row_number() over (partition by event_id order by log_partition, log_offset) = 1
)

select * from final
