-- One row a published policy version: since when the engines serve it.
-- Key: policy_version
with final as (
    select policy_version, boundary, weights, digest, time_us as published_us
    from event_policy
    where type = 'policy.published'
    qualify row_number() over (partition by event_id order by log_partition, log_offset) = 1
)

select * from final
