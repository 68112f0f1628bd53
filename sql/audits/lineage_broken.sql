-- One row a link that is missing on the way from a trained token to where it came from: a consumed group
-- without derived rows in the set that its step trained on, or a target whose call is not in the lake.
-- Key: group_id, execution_id, call_id, step
with consumed as (
    select unnest(groups) as group_id, step
    from steps
    where new_version is not null and set_name = (select set_name from params)
),

groups_alone as (
    select
        c.group_id,
        null::text as execution_id,
        null::bigint as call_id,
        c.step,
        'step ' || c.step || ' trained on the group, which has no derived rows' as reason
    from consumed as c
    anti join weights as w on w.group_id = c.group_id
),

targets_alone as (
    select distinct
        s.group_id,
        s.execution_id,
        s.call_id,
        null::bigint as step,
        'the call is a target and not in the lake' as reason
    from segments as s
    anti join calls as c on c.execution_id = s.execution_id and c.call_id = s.call_id
    where s.target
),

final as (
    select * from groups_alone
    union all
    select * from targets_alone
)

select * from final
