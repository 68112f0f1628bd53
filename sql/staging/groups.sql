-- One row a dispatched group: DISPATCHED -> READY -> CLAIMED -> CONSUMED.
-- A group is made ready once, whatever other sets are derived later; a claim may be void and repeated: the
-- latest is shown.
-- Key: group_id
with first_seen as (
    select *
    from event_groups
    qualify row_number() over (partition by event_id order by log_partition, log_offset) = 1
),

dispatched as (
    select group_id, task, size, policy_version, boundary, time_us
    from first_seen
    where type = 'group.dispatched'
),

ready as (
    select *
    from first_seen
    where type = 'group.ready'
),

claimed as (
    select group_id, step, claimed_by, time_us
    from first_seen
    where type = 'group.claimed'
    qualify row_number() over (partition by group_id order by log_offset desc) = 1
),

consumed as (
    select group_id, step, policy_version, time_us
    from first_seen
    where type = 'group.consumed'
),

final as (
    select
        d.group_id,
        d.task,
        d.size,
        d.policy_version as dispatch_version,
        d.boundary,
        d.time_us as dispatched_us,
        r.scores_end,
        r.tokens,
        r.targets,
        r.executions_valid,
        r.digest,
        r.time_us as ready_us,
        c.step as claimed_step,
        c.claimed_by,
        c.time_us as claimed_us,
        u.step as consumed_step,
        u.policy_version as consumed_version,
        u.time_us as consumed_us,
        case
            when u.group_id is not null then 'CONSUMED'
            when c.group_id is not null then 'CLAIMED'
            when r.group_id is not null then 'READY'
            else 'DISPATCHED'
        end as state
    from dispatched as d
    left join ready as r on r.group_id = d.group_id
    left join claimed as c on c.group_id = d.group_id
    left join consumed as u on u.group_id = d.group_id
)

select * from final
