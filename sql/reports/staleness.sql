-- One row a consumed group: how many versions the trainer had moved on between its dispatch and its step.
-- `d` is null where a version is unknown: unknown is reported as such, never as a number.
-- Key: group_id
with final as (
    select
        group_id,
        consumed_step as step,
        dispatch_version,
        consumed_version,
        consumed_version - dispatch_version as d
    from groups
    where state = 'CONSUMED'
)

select * from final
