-- Question: Which step and which weights did a sampled token end in?
-- One row a range of sampled tokens, [output_start, output_end) of a call's output, of one version and one
-- fate: the version that sampled it (null: the engine did not say), the admitted path and the step that
-- trained it, and the weights that came of it. `not_trained` says why there is none; null where it was
-- trained.
-- Then: `--where "execution_id = '...' and call_id = 3"` follows one call, with `and 7 >= output_start and
-- 7 < output_end` its eighth token; not_trained shows what is lost where.
-- Empty: no ended execution has sampled tokens.
-- Key: group_id, execution_id, call_id, output_start
with ranged as (
    select
        r.*,
        g.state,
        g.consumed_step as step,
        g.consumed_version,
        case
            when r.path is not null and g.state <> 'CONSUMED' then 'its group is not consumed'
            when r.path is not null and w.advantage = 0 then 'its advantage is 0'
            when r.path is not null then null
            when c.role_rank = 4 then 'auxiliary'
            when not c.delivered then 'not delivered'
            when not c.has_logprobs then 'no log-probabilities'
            when e.status = 'lost' then 'its execution was lost'
            when w.valid is null then 'its group is not derived'
            when not w.valid then 'its execution has no score'
            else 'on no admitted path'
        end as not_trained
    from sampled_ranges as r
    join calls as c on c.execution_id = r.execution_id and c.call_id = r.call_id
    join executions as e on e.execution_id = r.execution_id
    left join groups as g on g.group_id = r.group_id
    left join weights as w on w.execution_id = r.execution_id
),

final as (
    select
        r.group_id,
        r.execution_id,
        r.call_id,
        r.output_start,
        r.output_end,
        r.version,
        r.path,
        r.not_trained,
        case when r.path is not null then r.step end as step,
        case when r.path is not null then r.consumed_version end as consumed_version,
        case when r.not_trained is null then s.new_version end as new_version,
        case when r.not_trained is null then s.digest end as weights_digest,
        case when r.not_trained is null then s.checkpoint end as checkpoint
    from ranged as r
    left join steps as s on s.step = r.step
)

select * from final
