-- One row: the settings of the run that reports need. Null where the run did not say, and in a lake without a
-- run.
-- Key: harness
with stated as (
    select arg_max(if(json_valid(config), config, '{}'), log_offset) as config
    from event_policy
    where type = 'run.started'
),

final as (
    select
        json_extract_string(config, '$.rollout.harness') as harness,
        try_cast(json_extract_string(config, '$.rollout.phi') as double) as phi,
        try_cast(json_extract_string(config, '$.rollout.mu') as bigint) as mu,
        try_cast(json_extract_string(config, '$.rollout.groups_per_step') as bigint) as groups_per_step,
        try_cast(json_extract_string(config, '$.rollout.harness_timeout_s') as double) as harness_timeout_s
    from stated
)

select * from final
