-- Question: How stale was each group when it was trained on?
-- One row a consumed group: how many versions the trainer had moved on between its dispatch and its step. `d`
-- is null where a version is unknown: unknown is reported as such, never as a number.
-- Then: look for groups far above the others (`--by d`); time_to_ready says what held them up.
-- Empty: no group has been consumed: nothing was trained from this lake.
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
